"""Groups of features that measure the same thing: a diagnosis names one feature of each as evidence."""

from __future__ import annotations

from functools import cache

from rca.features.resource_evidence import nominal_resources, resource_names
from rca.features.table import WORST_EPISODE_FEATURES
from rca.features.work import OWN_PHASES

#: Groups of features that are not about a resource; the names of both tables.
_GROUPS: dict[str, tuple[str, ...]] = {
    "own_work": (
        "own_time_excess", "own_time_excess_z", "own_time_excess_p90", "late_share", "arrives_last_share",
        "gain_rank", "excess_order", "late_rank_share", "lateness", "top_gain_rank", "second_gain_rank",
        "last_rank_concentration", "last_rank_spread",
        "max_own_time_excess", "max_own_time_excess_z", "max_late_share",
    ),
    "episodes": (
        "episode_cost", "worst_episode_cost", "second_episode_cost", "other_node_episode_cost",
        "median_episode_cost", "capped_lateness",
        *(f"{prefix}{name}" for prefix in ("", "worst_") for name in WORST_EPISODE_FEATURES),
    ),
    "spikes": (
        "transfer_spike_mean",
        *(
            f"{column.removesuffix('_seconds')}_{kind}"
            for column in OWN_PHASES
            for kind in ("spike_mean", "stepwise_max_excess")
        ),
    ),
    "waiting": ("wait_deficit", "wait_share", "max_wait_deficit"),
    "transfer": ("transfer_excess", "transfer_share", "transfer_growth", "transfer_variation"),
    "phases": (
        *(
            f"{prefix}{phase}{suffix}"
            for phase in (
                "data_loading", "host_to_device", "forward", "backward", "optimizer", "checkpoint", "gc",
            )
            for prefix, suffix in (("", "_excess"), ("", "_growth"), ("", "_growth_job"), ("max_", "_excess"))
        ),
        "compute_balance", "checkpoint_share", "gc_share", "data_loading_share", "largest_phase_share",
        "forward_backward_correlation", "forward_backward_correlation_job",
    ),
    "temporal": (
        "own_time_excess_outside", "own_time_growth", "own_time_volatility", "late_start", "late_end",
        "step_variation",
        "slow_segment_found", "slow_segment_share", "slow_segment_start", "slow_segment_end",
        "slow_segment_contrast", "slow_segment_ratio",
        "lateness_growth", "spike_share", "spike_cost", "period_strength", "period_steps", "step_time_trend",
    ),
    "untimed": ("untimed_excess", "max_untimed_excess", "untimed", "pauses"),
    "activity": ("activity_per_compute",),
    "load": (
        "load_correlation", "load_correlation_job", "load_imbalance", "load_excess", "load_growth",
        "slow_segment_ratio_per_load", "load_step_correlation",
    ),
    "endings": (
        "steps_behind_furthest", "steps_behind", "unfinished", "fatal_event", "missed_event",
        "steps_since_progress", "unfinished_share",
        "ended_early_share", "max_steps_behind", "any_fatal_event", "any_missed_event", "fatal_delay",
        "stopped_after", "cpu_after", "gpu_after", "power_after", "memory_after", "traffic_after",
        "sampled_after", "max_stopped_after", "mean_cpu_after", "mean_gpu_after", "mean_power_after",
        "min_memory_after", "mean_traffic_after", "mean_sampled_after",
    ),
    "topology": (
        "log2_ranks", "log2_nodes", "pipeline_stages", "gain_node", "gain_stage", "node_peer_excess",
        "tensor_peer_excess", "node_peer_late_share", "stage_peer_late_share",
        "top_gain_node", "top_gain_stage",
    ),
    "coverage": (
        "log2_steps", "step_noise", "phases_measured", "communication_measured", "resources_measured",
    ),
}  # fmt: skip


@cache
def feature_groups() -> dict[str, str]:
    """Group of every feature of both tables: a name above, or the resource whose signals it scores."""
    groups = {name: group for group, names in _GROUPS.items() for name in names}
    for resource in resource_names():
        for against in ("vs_peers", "vs_past"):
            groups[f"{resource}_{against}"] = groups[f"max_{resource}_{against}"] = resource
    for resource in nominal_resources():
        for prefix in ("", "max_", "median_"):
            groups[f"{prefix}{resource}_vs_nominal"] = resource
    for prefix in ("", "max_", "median_"):
        groups[f"{prefix}pcie_errors_vs_nominal"] = "pcie"
    return groups
