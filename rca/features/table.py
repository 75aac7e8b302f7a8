"""The feature table: every number the models see, with its unit and meaning, in a stable order.

`VERSION` goes into every bundle; a bundle trained on another version is refused rather than misread.
"Relative" means in units of the window's usual (median) step time, so that a model serves jobs of any speed.
"""

from __future__ import annotations

from typing import NamedTuple

from rca.features.resource_evidence import nominal_resources, resource_names
from rca.features.work import OWN_PHASES

VERSION = 9


class Feature(NamedTuple):
    """One column of a feature matrix."""

    name: str
    unit: str
    meaning: str


_PHASES = {
    "data_loading": "waiting for input data",
    "host_to_device": "host-to-device copies",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "checkpoint": "checkpoint",
    "gc": "garbage collection",
}


#: Of a rank's own spell: the contiguous steps in which its lateness adds up to most.
_SPELL: tuple[Feature, ...] = (
    Feature(
        "episode_cost",
        "relative",
        "capped lateness above the allowed in the rank's own spell, mean over all timed steps",
    ),
    Feature("episode_excess", "relative", "own work above stage peers, mean over the spell"),
    Feature(
        "episode_late_share", "share of steps", "timed steps of the spell with own work well above peers"
    ),
    Feature("episode_late_steps_log2", "log2", "late steps of the spell, plus one"),
    Feature("episode_share", "share of steps", "length of the spell"),
    Feature("episode_start", "share of steps", "where the spell begins"),
    Feature("episode_end", "share of steps", "where the spell ends"),
    Feature(
        "episode_excess_outside", "relative", "capped excess, mean over the steps beside the spell, if any"
    ),
    Feature(
        "episode_removal_gain", "relative", "step time saved in the spell had this rank worked like its peers"
    ),
    Feature(
        "episode_arrives_last_share",
        "share of steps",
        "timed steps of the spell in which this rank came last",
    ),
    Feature("episode_wait_deficit", "relative", "the job's median waiting minus this rank's, in the spell"),
    Feature(
        "episode_node_peer_excess",
        "relative",
        "smallest excess in the spell among the other ranks of the node",
    ),
    Feature(
        "episode_tensor_peer_excess",
        "relative",
        "smallest excess in the spell among the rest of the tensor group",
    ),
    *(
        Feature(f"{name}_episode_excess", "relative", f"{words} above stage peers, mean over the spell")
        for name, words in _PHASES.items()
    ),
)


_RANK: tuple[Feature, ...] = (
    Feature("own_time_excess", "relative", "own work above stage peers, mean over the slow stretch"),
    Feature("own_time_excess_z", "noise", "the same in units of the healthy spread"),
    Feature("own_time_excess_p90", "relative", "90th percentile over the slow stretch"),
    Feature("own_time_excess_outside", "relative", "own work above peers outside the slow stretch"),
    Feature(
        "own_time_growth", "relative", "own work in the stretch minus outside it, less the peers' growth"
    ),
    Feature("own_time_volatility", "relative", "standard deviation of the excess over the stretch"),
    Feature("late_share", "share of steps", "steps of the stretch with own work well above peers"),
    Feature("late_start", "share of steps", "where the first tenth of the late steps lies in the window"),
    Feature("late_end", "share of steps", "where the last tenth of the late steps lies in the window"),
    Feature("arrives_last_share", "share of steps", "steps of the stretch in which this rank came last"),
    Feature("wait_deficit", "relative", "peers' median waiting minus this rank's, in the stretch"),
    Feature("wait_share", "relative", "own waiting in the stretch"),
    Feature("gain_rank", "relative", "step time saved had this rank worked like its peers"),
    Feature("gain_node", "relative", "step time saved had its whole node worked like the peers"),
    Feature("gain_stage", "relative", "step time saved had its stage worked like the next slowest stage"),
    Feature("transfer_excess", "relative", "transfer above the peers' median, in the stretch"),
    Feature("forward_backward_correlation", "-1..1", "of excess over peers, over all steps"),
    Feature("load_correlation", "-1..1", "own work with squared sequence lengths, tokens or samples"),
    Feature("load_excess", "relative", "input counted above the median rank's, mean over the stretch"),
    Feature(
        "activity_per_compute", "ratio", "busy multiprocessors per time spent computing, beside the job's"
    ),
    *(
        feature
        for name, words in _PHASES.items()
        for feature in (
            Feature(f"{name}_excess", "relative", f"{words} above stage peers, mean over the stretch"),
            Feature(f"{name}_growth", "relative", f"{words} in the stretch minus outside it"),
        )
    ),
    Feature("compute_balance", "-1..1", "(backward - forward excess) over their sum of magnitudes"),
    *_SPELL,
    Feature("node_peer_excess", "relative", "smallest own excess among the other ranks of the node"),
    Feature("node_peer_late_share", "share of ranks", "other ranks of the node that are late too"),
    Feature("tensor_peer_excess", "relative", "smallest own excess among the rest of the tensor group"),
    Feature("stage_peer_late_share", "share of ranks", "other ranks of the stage that are late too"),
    Feature("late_rank_share", "share of ranks", "ranks of the job that are late"),
    Feature("excess_order", "share of ranks", "ranks of the job with a larger own excess"),
    *(
        feature
        for name in resource_names()
        for feature in (
            Feature(f"{name}_vs_peers", "units", f"{name} signals versus peers"),
            Feature(f"{name}_vs_past", "units", f"{name} signals in the stretch versus outside it"),
        )
    ),
    *(
        Feature(f"{name}_vs_nominal", "units", f"{name} signals versus a sound machine's, which shows none")
        for name in nominal_resources()
    ),
    Feature("steps_behind_furthest", "steps", "how far behind the furthest rank the rows end"),
    Feature("steps_behind", "steps", "how far behind the median rank the rows end"),
    Feature("unfinished", "0/1", "the last row was never finished"),
    Feature("fatal_event", "0/1", "a fatal event names the rank or its node"),
    Feature("missed_event", "0/1", "an event reports the rank or its node as missing"),
    Feature("stopped_after", "0..1", "looks that found its process stopped, after the job's last step"),
    Feature("cpu_after", "ratio", "CPU time it used after the last step, relative to before"),
    Feature("gpu_after", "0..1", "how busy its GPU was after the last step"),
    Feature("power_after", "ratio", "power its GPU drew after the last step, relative to before"),
    Feature("memory_after", "ratio", "device memory in use after the last step, relative to before"),
    Feature("traffic_after", "ratio", "bytes over its links after the last step, relative to before"),
    Feature("sampled_after", "0/1", "exporters still saw its process after the last step"),
)


#: Columns copied from the job onto every rank, so that a rank is judged in context.
_JOB: tuple[Feature, ...] = (
    Feature("log2_ranks", "log2", "world size"),
    Feature("log2_nodes", "log2", "known nodes; 0 if unknown"),
    Feature("pipeline_stages", "count", "pipeline stages"),
    Feature("log2_steps", "log2", "steps used"),
    Feature("step_noise", "relative", "healthy spread of own work between peers"),
    Feature("step_variation", "relative", "spread of the job's step time outside the slow stretch"),
    Feature("slow_segment_found", "0/1", "a change of the job's pace was found"),
    Feature("slow_segment_share", "share of steps", "length of the slow stretch"),
    Feature("slow_segment_start", "share of steps", "where it begins"),
    Feature("slow_segment_end", "share of steps", "where it ends"),
    Feature("slow_segment_contrast", "relative", "step time inside minus outside"),
    Feature("slow_segment_ratio", "ratio", "step time inside over outside"),
    Feature("transfer_share", "relative", "transfer in the stretch"),
    Feature("transfer_growth", "relative", "transfer in the stretch minus outside it"),
    Feature("transfer_variation", "relative", "spread of transfer over the stretch"),
    Feature("lateness", "relative", "last arrival behind the peers' reference, mean over the stretch"),
    Feature("lateness_growth", "relative", "the same, inside minus outside the stretch"),
    *(
        Feature(
            f"{name}_growth_job", "relative", f"{words} in the stretch minus outside it, median of the ranks"
        )
        for name, words in _PHASES.items()
    ),
    Feature("top_gain_rank", "relative", "largest gain_rank"),
    Feature("second_gain_rank", "relative", "second largest gain_rank"),
    Feature("top_gain_node", "relative", "largest gain_node"),
    Feature("top_gain_stage", "relative", "largest gain_stage"),
    Feature("worst_episode_cost", "relative", "largest spell_cost"),
    Feature("second_episode_cost", "relative", "second largest spell_cost"),
    Feature("other_node_episode_cost", "relative", "largest spell_cost on other nodes than the largest's"),
    Feature("median_episode_cost", "relative", "median spell_cost of the ranks"),
    Feature("capped_lateness", "relative", "capped lateness of whoever comes last, mean over all steps"),
    *(
        Feature(
            f"{name}_spike_mean",
            "relative",
            f"{words} above its lower third on most ranks, mean over all steps",
        )
        for name, words in {**_PHASES, "transfer": "transfer"}.items()
    ),
    *(
        Feature(
            f"{name}_stepwise_max_excess", "relative", f"capped {words} excess of whoever has most, all steps"
        )
        for name, words in _PHASES.items()
    ),
    Feature(
        "last_rank_concentration", "share of steps", "steps in which the most frequent last rank came last"
    ),
    Feature("last_rank_spread", "share of ranks", "ranks that came last at least once"),
    Feature("spike_share", "share of steps", "steps more than half above the usual"),
    Feature("spike_cost", "relative", "time those steps add to the mean step"),
    Feature("period_strength", "0..1", "autocorrelation at the strongest repetition of step time"),
    Feature("period_steps", "steps", "that repetition"),
    Feature("step_time_trend", "relative", "growth of step time over the window"),
    Feature("checkpoint_share", "relative", "mean checkpoint time of all ranks"),
    Feature("gc_share", "relative", "mean garbage-collection time of all ranks"),
    Feature("data_loading_share", "relative", "mean data-loading time of all ranks"),
    Feature("forward_backward_correlation_job", "-1..1", "median over ranks"),
    Feature("load_correlation_job", "-1..1", "median over ranks"),
    Feature("load_imbalance", "relative", "spread of load between ranks at the same step"),
    Feature("load_growth", "relative", "input counted in the stretch over outside it, less one"),
    Feature(
        "slow_segment_ratio_per_load", "ratio", "step time inside over outside, relative to the input counted"
    ),
    Feature("load_step_correlation", "-1..1", "step time with the median rank's input, over all steps"),
    Feature(
        "steps_since_progress", "steps", "from the last sign of progress to the window's end, at most 100"
    ),
    Feature("unfinished_share", "share of ranks", "ranks whose last row was never finished"),
    Feature("ended_early_share", "share of ranks", "ranks whose rows end a step or more before the furthest"),
    Feature("max_steps_behind", "steps", "most that a rank is behind the median rank, at most 100"),
    Feature("any_fatal_event", "0/1", "a fatal event was reported"),
    Feature("any_missed_event", "0/1", "a missed heartbeat or collective timeout was reported"),
    Feature("fatal_delay", "steps", "from the last sign of progress to the first fatal event, within 100"),
    Feature("max_stopped_after", "0..1", "largest share of looks that found a process stopped at the end"),
    Feature("mean_cpu_after", "ratio", "CPU time used after the last step, relative to before"),
    Feature("mean_gpu_after", "0..1", "how busy GPUs were after the last step"),
    Feature("mean_power_after", "ratio", "power GPUs drew after the last step, relative to before"),
    Feature("min_memory_after", "ratio", "device memory in use after the last step: the rank with the least"),
    Feature("mean_traffic_after", "ratio", "bytes over links after the last step, relative to before"),
    Feature("mean_sampled_after", "share of ranks", "processes that exporters still saw after the last step"),
    Feature("phases_measured", "count", "own phases measured"),
    Feature("communication_measured", "0/1/2", "not at all, unsplit, waiting apart from transfer"),
    Feature("resources_measured", "share", "resources with at least one channel"),
)


_WINDOW: tuple[Feature, ...] = (
    *_JOB,
    *(
        Feature(f"worst_{name}", unit, meaning.replace("the spell", "the costliest spell"))
        for name, unit, meaning in _SPELL
        if name != "episode_cost"
    ),
    *(
        Feature(f"max_{name}_vs_peers", "units", f"largest {name} score versus peers")
        for name in resource_names()
    ),
    *(
        Feature(f"max_{name}_vs_past", "units", f"largest {name} score versus the past")
        for name in resource_names()
    ),
    *(
        feature
        for name in nominal_resources()
        for feature in (
            Feature(f"max_{name}_vs_nominal", "units", f"largest {name} score versus a sound machine"),
            Feature(f"median_{name}_vs_nominal", "units", f"median {name} score versus a sound machine"),
        )
    ),
    Feature("max_own_time_excess", "relative", "largest own excess of a rank"),
    Feature("max_own_time_excess_z", "noise", "the same in units of the healthy spread"),
    Feature("max_wait_deficit", "relative", "largest wait deficit"),
    Feature("max_late_share", "share of steps", "largest late share"),
    *(
        Feature(f"max_{name}_excess", "relative", f"largest {words} excess")
        for name, words in _PHASES.items()
    ),
)


JOB_FEATURES = tuple(feature.name for feature in _JOB)


RANK_FEATURES = tuple(feature.name for feature in (*_RANK, *_JOB))


WINDOW_FEATURES = tuple(feature.name for feature in _WINDOW)


def describe() -> dict[str, tuple[Feature, ...]]:
    """The whole table: one row per rank feature and per window feature, in model order."""
    return {"rank": (*_RANK, *_JOB), "window": _WINDOW}


#: What the window knows of its costliest episode.
OF_THE_COSTLIEST = (
    "episode_excess", "episode_late_share", "episode_late_steps_log2", "episode_share",
    "episode_start", "episode_end",
    "episode_excess_outside", "episode_removal_gain", "episode_arrives_last_share",
    "episode_wait_deficit", "episode_node_peer_excess", "episode_tensor_peer_excess",
    *(f"{column.removesuffix('_seconds')}_episode_excess" for column in OWN_PHASES),
)  # fmt: skip
