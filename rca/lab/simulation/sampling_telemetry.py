"""Draws of a job's telemetry: exporters, the trainer's timers, and lost data."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from rca.lab.simulation.sampling_job import log_uniform
from rca.lab.simulation.scenario import (
    MIN_ROWS_AFTER_SKIP,
    BubblePlace,
    CopyPlace,
    DeviceWait,
    Ending,
    ExchangePlace,
    LoadingPlace,
    PhaseAccounting,
    SimulationScenario,
    SkewedBy,
    Telemetry,
    Visibility,
)

TESTBED_EXPORTERS = (
    "cpu", "pressure", "memory", "disk", "network", "tcp", "qdisc", "process", "container", "python",
)  # fmt: skip
CLUSTER_EXPORTERS = ("dcgm", "dcgm_profiling", "cpu", "pressure", "memory", "disk", "network", "infiniband")
MIXED_EXPORTERS = (*CLUSTER_EXPORTERS, "process", "container", "python")
OPTIONAL_PHASES = (
    "data_loading_seconds", "host_to_device_seconds", "optimizer_seconds", "checkpoint_seconds", "gc_seconds",
)  # fmt: skip
CORE_PHASES = (
    "forward_seconds", "backward_seconds", "communication_wait_seconds", "communication_transfer_seconds",
)  # fmt: skip
MAX_SAMPLES = 120
#: Random streams of later additions, apart from a scenario's other draws.
_INPUTS_STREAM, _TIMERS_STREAM, _SAMPLES_STREAM = 15, 16, 17
#: Share of jobs with traced operations, and the largest number of ranks of such a job.
TRACED_SHARE, TRACED_RANKS = 0.02, 64
#: Above this number of ranks the ends of single operations are not kept.
MANY_RANKS = 512
#: Shares of jobs without pipelines that time their exchange within the backward, within their layers, and
#: within the optimizer. Their hosts wait for their devices in every phase.
EXCHANGE_IN_BACKWARD_SHARE, EXCHANGE_IN_LAYERS_SHARE, EXCHANGE_IN_OPTIMIZER_SHARE = 0.1, 0.15, 0.08
#: Share of cluster jobs with a forward that fetches its batch. Shares of the other jobs that copy it within
#: the loading, or within the forward.
FETCHED_IN_FORWARD_SHARE, COPIED_IN_LOADING_SHARE, COPIED_IN_FORWARD_SHARE = 0.08, 0.2, 0.2
#: Shares of pipelines that time their bubbles in no phase, and within the backward.
BUBBLES_UNTIMED_SHARE, BUBBLES_IN_BACKWARD_SHARE = 0.25, 0.15
#: Share of pipelines that time their exchange within the backward, and share that does so in the optimizer.
PIPELINE_EXCHANGE_ELSEWHERE_SHARE = 0.07
#: Share of jobs in which some ranks lack timers, and the probability of each timer to be one of these.
PARTLY_TIMED_SHARE, PARTLY_TIMED_PHASE_SHARE = 0.06, 0.5
#: Share of cluster jobs with timers that see launches only, because the host does not wait for its device.
LAUNCHES_ONLY_SHARE = 0.12
#: Share of windows in which samples cover more steps than rows do.
MARGIN_SHARE = 0.15
#: Share of jobs that record the number of samples per step, with or without lengths.
SAMPLES_COUNTED_SHARE = 0.2
#: Share of jobs with device exporters that collect less often than they are scraped.
HELD_SHARE = 0.25


def sample_telemetry(rng: np.random.Generator, scenario: SimulationScenario, cause: str) -> Telemetry:
    """Draw the telemetry; only the load columns depend on `cause`, because users add them on demand."""
    testbed, single = scenario.dialect == "cpu_testbed", scenario.n_nodes == 1
    named = rng.random() >= 0.07
    length = scenario.n_steps * scenario.workload.step_seconds
    interval = 0.2 * log_uniform(rng, 0.5, 5) if testbed else log_uniform(rng, 1, 30)
    full = rng.random() < 0.55
    interval = max(min(interval, length / 4), length / MAX_SAMPLES)
    hold, lag = (0.0, 0.0) if testbed else _held_values(rng, interval, length)
    return Telemetry(
        exporters=_exporters(rng, scenario),
        interval_seconds=interval,
        hold_seconds=hold,
        lag_seconds=lag,
        ops=bool(scenario.world_size <= TRACED_RANKS and rng.random() < TRACED_SHARE),
        states_sampled=bool(rng.random() < 0.5),
        forgets_dead=bool(rng.random() < 0.5),
        visibility=_visibility(rng),
        missing_phases=() if full else _missing_phases(rng),
        ranks_without_phases=_ranks_without_phases(rng, scenario),
        load_columns=bool(rng.random() < (0.45 if cause == "sequence_length_imbalance" else 0.12)),
        node_names=named,
        list_ranks=bool(rng.random() >= 0.04),
        missing_metrics=0.0 if full else rng.uniform(0, 0.3),
        missing_series=0.0 if full else rng.uniform(0, 0.08),
        gap_probability=0.0 if full else rng.uniform(0, 0.3),
        reset_probability=0.01 if rng.random() < 0.15 else 0.0,
        old_names=bool(rng.random() < 0.2),
        clock_skew_seconds=0.0 if testbed or single else log_uniform(rng, 1e-4, 1.0),
        events=bool(rng.random() < 0.5),
        ending=_ending(rng),
        phase_accounting=_phase_accounting(rng, scenario),
        begun_steps_reported=bool(rng.random() < 0.6),
        **_without_rows(rng, scenario),
        samples_counted=bool(
            np.random.default_rng([scenario.seed, _SAMPLES_STREAM]).random() < SAMPLES_COUNTED_SHARE
        ),
        **_partly_timed(scenario),
    )


def _phase_accounting(rng: np.random.Generator, scenario: SimulationScenario) -> PhaseAccounting:
    """Draw the trainer's timers; those of the testbed see all work as it is, many others do not."""
    if scenario.dialect == "cpu_testbed":
        return PhaseAccounting(**_uneven_transfers(rng, scenario, 0.6))
    tensor, pipelined = scenario.parallelism.tensor > 1, scenario.parallelism.pipeline > 1
    shared, inside, nowhere, overlapped, launched = rng.random(5)
    launches_only = not pipelined and launched < LAUNCHES_ONLY_SHARE
    places: tuple[DeviceWait, ...] = ("forward", "optimizer", "nowhere")
    return PhaseAccounting(
        batch_shared=bool(tensor and shared < 0.5),
        tensor_waits_inside=bool(tensor and inside < 0.5 and not launches_only),
        waits_for_device=places[rng.integers(3)] if launches_only else "every phase",
        launch_share=rng.uniform(0.1, 0.9) if launches_only else 0.3,
        **_uneven_transfers(rng, scenario, 0.15),
        **_waits_place(scenario, nowhere, 1.0 if launches_only else overlapped),
        **_inputs_place(scenario),
    )


def _exchange_place(drawn: float) -> ExchangePlace:
    """Place of the exchange from a uniform draw; most simulated jobs time it as a phase of its own."""
    places: tuple[ExchangePlace, ...] = ("backward", "layers", "optimizer", "own phase")
    return places[
        int(
            np.searchsorted(
                np.cumsum(
                    [EXCHANGE_IN_BACKWARD_SHARE, EXCHANGE_IN_LAYERS_SHARE, EXCHANGE_IN_OPTIMIZER_SHARE]
                ),
                drawn,
                side="right",
            )
        )
    ]


class _WaitsPlace(TypedDict):
    bubbles_in: BubblePlace
    exchange_in: ExchangePlace


def _waits_place(scenario: SimulationScenario, nowhere: float, overlapped: float) -> _WaitsPlace:
    """Places of bubbles and of the exchange from uniform draws; most jobs have timers for waiting."""
    if scenario.parallelism.pipeline == 1:
        return {"bubbles_in": "waiting", "exchange_in": _exchange_place(overlapped)}
    if scenario.world_size > MANY_RANKS:
        return {"bubbles_in": "waiting", "exchange_in": "own phase"}
    # Jobs without a timer for the exchange have none for bubbles.
    if overlapped < PIPELINE_EXCHANGE_ELSEWHERE_SHARE:
        return {"bubbles_in": "backward", "exchange_in": "backward"}
    if overlapped < 2 * PIPELINE_EXCHANGE_ELSEWHERE_SHARE:
        return {"bubbles_in": "nowhere", "exchange_in": "optimizer"}
    bubbles: BubblePlace = (
        "backward" if nowhere < BUBBLES_UNTIMED_SHARE + BUBBLES_IN_BACKWARD_SHARE else "waiting"
    )
    return {
        "bubbles_in": "nowhere" if nowhere < BUBBLES_UNTIMED_SHARE else bubbles,
        "exchange_in": "own phase",
    }


class _InputsPlace(TypedDict):
    loading_in: LoadingPlace
    copy_in: CopyPlace


def _inputs_place(scenario: SimulationScenario) -> _InputsPlace:
    """Draw where the batch is fetched and copied, from a separate random stream."""
    fetched, copied = np.random.default_rng([scenario.seed, _INPUTS_STREAM]).random(2)
    if fetched < FETCHED_IN_FORWARD_SHARE:
        return {"loading_in": "forward", "copy_in": "forward"}
    if copied < COPIED_IN_LOADING_SHARE:
        return {"loading_in": "own phase", "copy_in": "data loading"}
    apart = copied >= COPIED_IN_LOADING_SHARE + COPIED_IN_FORWARD_SHARE
    return {"loading_in": "own phase", "copy_in": "own phase" if apart else "forward"}


class _UnevenTransfers(TypedDict, total=False):
    transfer_skew: float
    skewed_by: SkewedBy


def _uneven_transfers(
    rng: np.random.Generator, scenario: SimulationScenario, probability: float
) -> _UnevenTransfers:
    """Draw the part of a transfer that some ranks count as waiting, and which ranks these are."""
    if scenario.n_nodes == 1 or rng.random() >= probability:
        return {}
    by: SkewedBy = "node" if scenario.ranks_per_node > 1 and rng.random() < 0.4 else "ring"
    return {"transfer_skew": log_uniform(rng, 0.01, 0.5 if by == "node" else 0.15), "skewed_by": by}


def _without_rows(rng: np.random.Generator, scenario: SimulationScenario) -> dict[str, int]:
    """Draw the steps at both ends with samples but no rows; mostly the same number before and after."""
    if rng.random() >= MARGIN_SHARE or scenario.n_steps < 2 * MIN_ROWS_AFTER_SKIP:
        return {}
    margin, kind = int(log_uniform(rng, 1, scenario.n_steps / 4)), rng.random()
    return {
        "rows_skipped": margin if kind < 0.8 else 0,
        "rows_behind": max(0, margin + int(rng.integers(-1, 2))) if kind < 0.5 or kind >= 0.8 else 0,
    }


def _held_values(rng: np.random.Generator, interval: float, length: float) -> tuple[float, float]:
    """Draw the seconds that a device exporter keeps a value, and the value's age when it is collected."""
    if rng.random() >= HELD_SHARE:
        return 0.0, 0.0
    return min(interval * rng.uniform(1.2, 5), length / 8), min(rng.uniform(0, 2), length / 40)


def _missing_phases(rng: np.random.Generator) -> tuple[str, ...]:
    """Draw the missing timers: few trainers time everything, most time compute and communication."""
    return _random_subset(rng, OPTIONAL_PHASES, 0.35) + _random_subset(rng, CORE_PHASES, 0.1)


def _exporters(rng: np.random.Generator, scenario: SimulationScenario) -> tuple[str, ...]:
    if rng.random() < 0.12:
        return ()
    all_of = {"cpu_testbed": TESTBED_EXPORTERS, "gpu_cluster": CLUSTER_EXPORTERS, "mixed": MIXED_EXPORTERS}
    offered = all_of[scenario.dialect]
    if rng.random() < 0.5:
        return offered
    kept = _random_subset(rng, offered, 0.7)
    return kept or offered[:1]


def _visibility(rng: np.random.Generator) -> Visibility:
    choices: tuple[Visibility, ...] = ("full", "unsplit", "minimal", "loading")
    return choices[int(rng.choice(4, p=[0.78, 0.13, 0.05, 0.04]))]


def _ending(rng: np.random.Generator) -> Ending:
    choices: tuple[Ending, ...] = ("complete", "cut", "lagging", "finished")
    return choices[int(rng.choice(4, p=[0.6, 0.2, 0.1, 0.1]))]


class _PartlyTimed(TypedDict, total=False):
    partly_timed: tuple[str, ...]
    timing_ranks: tuple[int, ...]


def _partly_timed(scenario: SimulationScenario) -> _PartlyTimed:
    """Draw timers that only rank 0, one rank per node, or some ranks have, from a separate random stream."""
    rng = np.random.default_rng([scenario.seed, _TIMERS_STREAM])
    if rng.random() >= PARTLY_TIMED_SHARE:
        return {}
    rank = np.arange(scenario.world_size)
    chosen = (rank == 0, rank % scenario.ranks_per_node == 0, rng.random(rank.size) < 0.5)
    timing = np.flatnonzero(chosen[rng.integers(len(chosen))])
    return {
        "partly_timed": _random_subset(rng, OPTIONAL_PHASES, PARTLY_TIMED_PHASE_SHARE),
        "timing_ranks": tuple(timing.tolist()),
    }


def _ranks_without_phases(rng: np.random.Generator, scenario: SimulationScenario) -> tuple[int, ...]:
    if rng.random() >= 0.06 or scenario.world_size < 4:
        return ()
    count = int(rng.integers(1, max(2, scenario.world_size // 4)))
    return tuple(int(rank) for rank in rng.choice(scenario.world_size, count, replace=False))


def _random_subset(rng: np.random.Generator, names: tuple[str, ...], probability: float) -> tuple[str, ...]:
    return tuple(name for name in names if rng.random() < probability)
