"""The feature table: every number that the models see, with its unit and meaning, in model order.

`VERSION` goes into every bundle. A bundle of a version with other values is refused, see `former_names`.
"relative" means relative to the window's usual (median) step time, so one model serves jobs of any speed.
Meanings are notes that users read next to a value.
"""

from __future__ import annotations

from typing import NamedTuple

from rca.features.resource_evidence import nominal_resources, resource_names

VERSION = 10


class Feature(NamedTuple):
    """One column of a feature matrix."""

    name: str
    unit: str
    meaning: str


#: Own phases of a step, and their words in meanings.
_PHASES = {
    "data_loading": "data loading",
    "host_to_device": "host-to-device copies",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "checkpoint": "checkpoint",
    "gc": "garbage collection",
}

#: Of a rank's late episode: the contiguous steps in which its lateness adds up to most.
_EPISODE: tuple[Feature, ...] = (
    Feature(
        "episode_cost",
        "relative",
        "capped lateness above the allowed excess in the late episode, mean over all timed steps",
    ),
    Feature("episode_excess", "relative", "own work above stage peers, mean over the late episode"),
    Feature("episode_late_share", "share of steps", "steps of the late episode that are late"),
    Feature("episode_late_steps_log2", "log2", "late steps of the late episode, plus one"),
    Feature("episode_share", "share of steps", "length of the late episode"),
    Feature("episode_start", "share of steps", "position in the window at which the late episode begins"),
    Feature("episode_end", "share of steps", "position in the window at which the late episode ends"),
    Feature("episode_excess_outside", "relative", "capped excess over peers, mean outside the late episode"),
    Feature(
        "episode_removal_gain", "relative", "step time saved in the late episode without the rank's lateness"
    ),
    Feature(
        "episode_arrives_last_share", "share of steps", "steps of the late episode in which the rank is last"
    ),
    Feature(
        "episode_wait_deficit", "relative", "median rank's waiting minus the rank's, in the late episode"
    ),
    Feature(
        "episode_node_peer_excess",
        "relative",
        "smallest excess of the node's other ranks in the late episode",
    ),
    Feature(
        "episode_tensor_peer_excess",
        "relative",
        "smallest excess of the tensor group's other ranks in the late episode",
    ),
    *(
        Feature(
            f"{name}_episode_excess", "relative", f"{words} above stage peers, mean over the late episode"
        )
        for name, words in _PHASES.items()
    ),
)
#: Features of the costliest late episode that the window's row repeats, with the prefix ``worst_``.
WORST_EPISODE_FEATURES = tuple(feature.name for feature in _EPISODE if feature.name != "episode_cost")

_RANK: tuple[Feature, ...] = (
    Feature("own_time_excess", "relative", "own work above stage peers, mean over the slow segment"),
    Feature("own_time_excess_z", "noise", "own work above stage peers, in units of the healthy spread"),
    Feature(
        "own_time_excess_p90", "relative", "own work above stage peers, 90th percentile in the slow segment"
    ),
    Feature(
        "own_time_excess_outside", "relative", "own work above stage peers, mean outside the slow segment"
    ),
    Feature(
        "own_time_growth",
        "relative",
        "own work inside minus outside the slow segment, minus the median rank's",
    ),
    Feature("own_time_volatility", "relative", "standard deviation of the excess in the slow segment"),
    Feature("late_share", "share of steps", "steps of the slow segment with own work well above peers"),
    Feature("late_start", "share of steps", "position in the window of the first 10 % of the late steps"),
    Feature("late_end", "share of steps", "position in the window of the last 10 % of the late steps"),
    Feature("arrives_last_share", "share of steps", "steps of the slow segment in which the rank is last"),
    Feature("wait_deficit", "relative", "peers' median waiting minus the rank's, in the slow segment"),
    Feature("wait_share", "relative", "waiting in the slow segment"),
    Feature("gain_rank", "relative", "step time saved if the rank worked like its peers"),
    Feature("gain_node", "relative", "step time saved if the rank's whole node worked like its peers"),
    Feature(
        "gain_stage", "relative", "step time saved if the rank's stage worked like the next slowest stage"
    ),
    Feature("transfer_excess", "relative", "transfer above the peers' median, in the slow segment"),
    Feature(
        "forward_backward_correlation", "-1..1", "correlation of forward and backward excess over all steps"
    ),
    Feature("load_correlation", "-1..1", "correlation of own work with the input of the step"),
    Feature("load_excess", "relative", "input above the median rank's, mean over the slow segment"),
    Feature(
        "activity_per_compute",
        "ratio",
        "active multiprocessors per computing time, relative to the median rank",
    ),
    *(
        feature
        for name, words in _PHASES.items()
        for feature in (
            Feature(f"{name}_excess", "relative", f"{words} above stage peers, mean over the slow segment"),
            Feature(f"{name}_growth", "relative", f"{words} inside minus outside the slow segment"),
        )
    ),
    Feature(
        "untimed_excess",
        "relative",
        "own work outside all timed phases, mean over all steps, minus the median rank's",
    ),
    Feature("compute_balance", "-1..1", "backward minus forward excess, over the sum of their magnitudes"),
    *_EPISODE,
    Feature("node_peer_excess", "relative", "smallest own-work excess of the node's other ranks"),
    Feature("node_peer_late_share", "share of ranks", "late ranks among the node's other ranks"),
    Feature("tensor_peer_excess", "relative", "smallest own-work excess of the tensor group's other ranks"),
    Feature("stage_peer_late_share", "share of ranks", "late ranks among the stage's other ranks"),
    Feature("late_rank_share", "share of ranks", "late ranks of the job"),
    Feature("excess_order", "share of ranks", "ranks of the job with a larger own-work excess"),
    *(
        feature
        for name in resource_names()
        for feature in (
            Feature(f"{name}_vs_peers", "units", f"{name} signals compared with peers"),
            Feature(
                f"{name}_vs_past", "units", f"{name} signals inside compared with outside the slow segment"
            ),
        )
    ),
    *(
        Feature(f"{name}_vs_nominal", "units", f"{name} signals compared with those of a healthy machine")
        for name in nominal_resources()
    ),
    Feature("pcie_errors_vs_nominal", "units", "errors of the PCIe link compared with none"),
    Feature("steps_behind_furthest", "steps", "last step of the rank minus that of the furthest rank"),
    Feature("steps_behind", "steps", "last step of the rank minus that of the median rank"),
    Feature("unfinished", "0/1", "the last step was begun and not finished"),
    Feature("fatal_event", "0/1", "a fatal event names the rank or its node"),
    Feature("missed_event", "0/1", "an event reports the rank or its node as missing"),
    Feature("stopped_after", "0..1", "samples after the last progress in which the process was stopped"),
    Feature("cpu_after", "ratio", "CPU time per second after the last progress, relative to before"),
    Feature("gpu_after", "0..1", "GPU activity after the last progress"),
    Feature("power_after", "ratio", "GPU power after the last progress, relative to before"),
    Feature("memory_after", "ratio", "used GPU memory after the last progress, relative to before"),
    Feature(
        "traffic_after", "ratio", "bytes per second over links after the last progress, relative to before"
    ),
    Feature("sampled_after", "0/1", "exporters see the process after the last progress"),
)

#: Columns of the job that every rank's row repeats, so that a rank is judged in context.
_JOB: tuple[Feature, ...] = (
    Feature("log2_ranks", "log2", "world size"),
    Feature("log2_nodes", "log2", "known nodes, 1 if unknown"),
    Feature("pipeline_stages", "count", "pipeline stages"),
    Feature("log2_steps", "log2", "steps of the window without warm-up"),
    Feature("step_noise", "relative", "healthy spread of own work between peers"),
    Feature("step_variation", "relative", "interquartile range of step time outside the slow segment"),
    Feature("slow_segment_found", "0/1", "the step time of the job changes in the window"),
    Feature("slow_segment_share", "share of steps", "length of the slow segment"),
    Feature(
        "slow_segment_start", "share of steps", "position in the window at which the slow segment begins"
    ),
    Feature("slow_segment_end", "share of steps", "position in the window at which the slow segment ends"),
    Feature("slow_segment_contrast", "relative", "step time inside minus outside the slow segment"),
    Feature("slow_segment_ratio", "ratio", "step time inside over outside the slow segment"),
    Feature("transfer_share", "relative", "transfer in the slow segment"),
    Feature("transfer_growth", "relative", "transfer inside minus outside the slow segment"),
    Feature(
        "transfer_variation", "relative", "10th to 90th percentile range of transfer in the slow segment"
    ),
    Feature("lateness", "relative", "excess of the last rank over its peers, mean over the slow segment"),
    Feature("lateness_growth", "relative", "excess of the last rank, inside minus outside the slow segment"),
    *(
        Feature(
            f"{name}_growth_job", "relative", f"{words} inside minus outside the slow segment, median rank"
        )
        for name, words in _PHASES.items()
    ),
    Feature("top_gain_rank", "relative", "largest step time saved if one rank worked like its peers"),
    Feature(
        "second_gain_rank", "relative", "second largest step time saved if one rank worked like its peers"
    ),
    Feature("top_gain_node", "relative", "largest step time saved if one node worked like its peers"),
    Feature(
        "top_gain_stage", "relative", "largest step time saved if one stage worked like the next slowest"
    ),
    Feature("worst_episode_cost", "relative", "largest cost of a rank's late episode, per step"),
    Feature("second_episode_cost", "relative", "second largest cost of a rank's late episode, per step"),
    Feature(
        "other_node_episode_cost", "relative", "largest cost of a late episode on any other node, per step"
    ),
    Feature("median_episode_cost", "relative", "median cost of the ranks' late episodes, per step"),
    Feature("capped_lateness", "relative", "capped lateness of the last rank, mean over all steps"),
    *(
        Feature(
            f"{name}_spike_mean",
            "relative",
            f"{words} above its usual time, median rank, mean over all steps",
        )
        for name, words in {**_PHASES, "transfer": "transfer"}.items()
    ),
    *(
        Feature(
            f"{name}_stepwise_max_excess",
            "relative",
            f"capped {words} excess of each step's slowest rank, mean over all steps",
        )
        for name, words in _PHASES.items()
    ),
    Feature(
        "last_rank_concentration", "share of steps", "steps in which the most frequent last rank is last"
    ),
    Feature("last_rank_spread", "share of ranks", "ranks that are last in at least one step"),
    Feature("spike_share", "share of steps", "steps longer than 1.5 usual steps"),
    Feature("spike_cost", "relative", "time that steps longer than 1.5 usual steps add to the mean step"),
    Feature("period_strength", "0..1", "autocorrelation of step time at its strongest period"),
    Feature("period_steps", "steps", "strongest period of step time"),
    Feature("step_time_trend", "relative", "growth of step time over the window"),
    Feature("checkpoint_share", "relative", "checkpoint time, mean over ranks and steps"),
    Feature("gc_share", "relative", "garbage-collection time, mean over ranks and steps"),
    Feature("data_loading_share", "relative", "data-loading time, mean over ranks and steps"),
    Feature(
        "largest_phase_share", "relative", "longest timed phase of each rank and step, mean over all of them"
    ),
    Feature("pauses", "relative", "longer pauses between steps than usual, per step"),
    Feature("untimed", "relative", "time outside all timers, in steps with more of it than usual, per step"),
    Feature(
        "forward_backward_correlation_job", "-1..1", "correlation of forward and backward excess, median rank"
    ),
    Feature("load_correlation_job", "-1..1", "correlation of own work with the input, median rank"),
    Feature(
        "load_imbalance", "relative", "largest rank's input above the median rank's, mean over all steps"
    ),
    Feature("load_growth", "relative", "growth of the input in the slow segment, as a ratio minus one"),
    Feature(
        "slow_segment_ratio_per_load", "ratio", "step time per input, inside over outside the slow segment"
    ),
    Feature("load_step_correlation", "-1..1", "correlation of step time with the median rank's input"),
    Feature("steps_since_progress", "steps", "from the last progress to the window's end, at most 100 steps"),
    Feature("unfinished_share", "share of ranks", "ranks that began their last step and did not finish it"),
    Feature("ended_early_share", "share of ranks", "ranks that end a step or more before the furthest rank"),
    Feature(
        "max_steps_behind", "steps", "largest distance of a rank behind the median rank, at most 100 steps"
    ),
    Feature("any_fatal_event", "0/1", "a fatal event was reported"),
    Feature("any_missed_event", "0/1", "a missed heartbeat or collective timeout was reported"),
    Feature("fatal_delay", "steps", "from the last progress to the first fatal event, at most 100 steps"),
    Feature(
        "max_stopped_after", "0..1", "largest share of samples after the last progress with a stopped process"
    ),
    Feature(
        "mean_cpu_after", "ratio", "CPU time per second after the last progress over before, mean of ranks"
    ),
    Feature("mean_gpu_after", "0..1", "GPU activity after the last progress, mean of ranks"),
    Feature("mean_power_after", "ratio", "GPU power after the last progress over before, mean of ranks"),
    Feature("min_memory_after", "ratio", "used GPU memory after the last progress over before, lowest rank"),
    Feature(
        "mean_traffic_after", "ratio", "bytes over links after the last progress over before, mean of ranks"
    ),
    Feature("mean_sampled_after", "share of ranks", "processes that exporters see after the last progress"),
    Feature("phases_measured", "count", "own phases with timings"),
    Feature(
        "communication_measured",
        "0/1/2",
        "communication timings: none, one timer, waiting and transfer apart",
    ),
    Feature("resources_measured", "share", "resources with at least one channel"),
)

_WINDOW: tuple[Feature, ...] = (
    *_JOB,
    *(
        Feature(f"worst_{name}", unit, meaning.replace("the late episode", "the costliest late episode"))
        for name, unit, meaning in _EPISODE
        if name in WORST_EPISODE_FEATURES
    ),
    *(
        Feature(f"max_{name}_vs_peers", "units", f"{name} signals compared with peers, highest rank")
        for name in resource_names()
    ),
    *(
        Feature(
            f"max_{name}_vs_past",
            "units",
            f"{name} signals inside compared with outside the slow segment, highest rank",
        )
        for name in resource_names()
    ),
    *(
        Feature(
            f"{prefix}_{name}_vs_nominal",
            "units",
            f"{name} signals compared with those of a healthy machine, {rank} rank",
        )
        for name in nominal_resources()
        for prefix, rank in (("max", "highest"), ("median", "median"))
    ),
    Feature("max_pcie_errors_vs_nominal", "units", "errors of the PCIe link, highest rank"),
    Feature("median_pcie_errors_vs_nominal", "units", "errors of the PCIe link, median rank"),
    Feature(
        "max_own_time_excess", "relative", "own work above stage peers in the slow segment, highest rank"
    ),
    Feature("max_own_time_excess_z", "noise", "own work above stage peers, highest rank, in healthy spreads"),
    Feature("max_wait_deficit", "relative", "peers' median waiting minus the rank's, largest of the ranks"),
    Feature("max_late_share", "share of steps", "late steps of the slow segment, highest rank"),
    Feature("max_untimed_excess", "relative", "own work outside all timed phases, highest minus median rank"),
    *(
        Feature(
            f"max_{name}_excess", "relative", f"{words} above stage peers in the slow segment, highest rank"
        )
        for name, words in _PHASES.items()
    ),
)

JOB_FEATURES = tuple(feature.name for feature in _JOB)
RANK_FEATURES = tuple(feature.name for feature in (*_RANK, *_JOB))
WINDOW_FEATURES = tuple(feature.name for feature in _WINDOW)


def describe() -> dict[str, tuple[Feature, ...]]:
    """The whole table in model order: the features of a rank, and those of a window."""
    return {"rank": (*_RANK, *_JOB), "window": _WINDOW}
