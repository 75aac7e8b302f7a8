"""Which question a feature answers: what an ablation leaves out together, and what is told only once."""

from __future__ import annotations

from functools import cache

from rca.features.evidence import resource_names, sound_resources
from rca.features.late_episode_features import OF_THE_COSTLIEST
from rca.features.work import OWN_PHASES

#: Groups of features that are not about a resource; the names of both tables.
_GROUPS: dict[str, tuple[str, ...]] = {
    "own_work": (
        "own_excess", "own_excess_z", "own_excess_p90", "late_share", "last_share", "gain_rank",
        "excess_rank", "job_late", "lateness", "top_gain_rank", "second_gain_rank",
        "last_concentration", "last_spread",
        "max_own_excess", "max_own_excess_z", "max_late_share",
    ),
    "spells": (
        "spell_cost", "top_spell_cost", "second_spell_cost", "apart_spell_cost", "median_spell_cost",
        "capped_lateness", *(f"{prefix}{name}" for prefix in ("", "top_") for name in OF_THE_COSTLIEST),
    ),
    "bursts": (
        "transfer_bursts",
        *(
            f"{column.removesuffix('_seconds')}_{kind}"
            for column in OWN_PHASES
            for kind in ("bursts", "turns")
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
        "compute_balance", "checkpoint_share", "gc_share", "data_loading_share",
        "forward_backward_correlation", "forward_backward_correlation_job",
    ),
    "temporal": (
        "own_excess_outside", "own_growth", "own_volatility", "late_start", "late_end", "step_variation",
        "stretch_found", "stretch_share", "stretch_start", "stretch_end", "stretch_contrast", "versus_past",
        "lateness_growth", "spike_share", "spike_cost", "period_strength", "period_steps", "trend",
    ),
    "activity": ("activity_per_compute",),
    "load": (
        "load_correlation", "load_correlation_job", "load_imbalance", "load_excess", "load_growth",
        "versus_load", "load_step_correlation",
    ),
    "endings": (
        "progress", "behind", "unfinished", "fatal_event", "missed_event", "silence", "unfinished_share",
        "ended_early_share", "worst_behind", "any_fatal_event", "any_missed_event", "fatal_delay",
        "stopped_after", "cpu_after", "gpu_after", "power_after", "memory_after", "traffic_after",
        "sampled_after", "max_stopped_after", "mean_cpu_after", "mean_gpu_after", "mean_power_after",
        "min_memory_after", "mean_traffic_after", "mean_sampled_after",
    ),
    "topology": (
        "log2_ranks", "log2_nodes", "stages", "gain_node", "gain_stage", "node_mates_excess",
        "tensor_mates_excess", "node_mates_late", "stage_mates_late", "top_gain_node", "top_gain_stage",
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
        for against in ("peers", "past"):
            groups[f"{resource}_{against}"] = groups[f"max_{resource}_{against}"] = resource
    for resource in sound_resources():
        for prefix in ("", "max_", "median_"):
            groups[f"{prefix}{resource}_sound"] = resource
    return groups


def group_names() -> tuple[str, ...]:
    """Groups in a stable order, the resources last."""
    return (*_GROUPS, *resource_names())
