"""From resources to phases: each rank's own durations, and the waiting that follows from the replay.

What a rank does alone follows from its resources. The replay (`rca.lab.simulation.forward_replay`) decides
when it may do it. The rest of a step is waiting: for the last member of the collective, for the neighbouring
stages, for the slowest member of the tensor group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.lab.simulation.compute_work import compute_parts, drawn_lengths, inputs_over_time, stage_work
from rca.lab.simulation.forward_replay import Durations, Feed, ReplayTimes, n_rows, row_of, run_forward
from rca.lab.simulation.noise import Noise
from rca.lab.simulation.resource_costs import (
    BETWEEN,
    HOST_PHASES,
    collector_pauses,
    exchange_seconds,
    host_stalls,
    launch_gaps,
    service_seconds,
    stage_link_seconds,
    taking_seconds,
)
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.scenario import SimulationScenario
from rca.lab.simulation.schedule import SimulatedStepShape, StepPlan, plan_of
from rca.whatif.optypes import ALL_GATHER, BACKWARD, FORWARD, FORWARD_SEND, OPTIMIZER, REDUCE_SCATTER

#: Part of a compilation that the forward waits for; the first backward compiles its own part.
COMPILED_IN_FORWARD = 0.85


@dataclass(frozen=True)
class Timing:
    """Phases and times of a run.

    Attributes
    ----------
    phases : mapping of str to ndarray of shape (n_ranks, n_steps), seconds
        By format column. The others contain ``gc_seconds``. They add up to ``step_seconds`` except for the
        host's work between steps.
    start : ndarray of shape (n_ranks, n_steps), seconds
        Since the job's first step, on one true clock.
    queued : ndarray of shape (n_ranks, n_steps), seconds
        Time for which single launches waited for a core.
    hosted : mapping of str to ndarray of shape (n_ranks, n_steps), seconds
        The host's part of a phase: gaps between launches, pauses, stalls.
    between : ndarray of shape (n_ranks, n_steps), seconds
        The host's work between steps, which is in no phase.
    replay : ReplayTimes
        Times of the replay.
    """

    phases: dict[str, FloatArray]
    start: FloatArray
    queued: FloatArray
    hosted: dict[str, FloatArray]
    between: FloatArray
    replay: ReplayTimes

    @property
    def step_seconds(self) -> FloatArray:
        """Time from the end of one step on all ranks to the end of the next on all ranks, (n_steps,)."""
        return np.diff(self.replay.start[:, 1:].max(axis=0), prepend=0.0)


@dataclass(frozen=True)
class _Own:
    """Each rank's own durations, all of shape (n_ranks, n_steps), seconds.

    ``forward`` and ``backward`` hold the steady part. ``stalls`` holds the part that falls into one
    microbatch, by phase, and ``hosted`` the host's part of a phase. ``copy`` assumes that all neighbours copy
    as well. ``scatter`` and ``gather`` add up to the transfer. ``between`` is the untimed part between steps.
    """

    taking: FloatArray
    copy: FloatArray
    forward: FloatArray
    backward: FloatArray
    stalls: dict[str, FloatArray]
    hosted: dict[str, FloatArray]
    scatter: FloatArray
    gather: FloatArray
    optimizer: FloatArray
    checkpoint: FloatArray
    between: FloatArray

    @property
    def transfer(self) -> FloatArray:
        return self.scatter + self.gather


def run_steps(
    scenario: SimulationScenario, resources: Resources, noise: Noise, *, keep_ends: bool = False
) -> Timing:
    """Run one job; `keep_ends` keeps the end of every operation."""
    plan, parts = job_plan(scenario), _parts(scenario, resources, noise)
    own = _own_work(scenario, resources, noise, parts[0])
    feed = Feed(
        service=service_seconds(scenario, resources, noise),
        taking=own.taking,
        copy=own.copy,
        after=own.optimizer + own.checkpoint + own.between,
        workers=scenario.workload.loader_workers,
        depth=scenario.workload.prefetch_steps,
        link=scenario.ranks_per_node,
        sharing=scenario.workload.copy_sharing,
    )
    durations = _durations(scenario, resources, noise, plan, own, parts[1])
    replay = run_forward(plan, durations, feed, keep_ends=keep_ends)
    return Timing(
        _phases(replay, own, resources.gc),
        replay.start[:, :-1],
        noise.hiccup,
        own.hosted,
        own.between,
        replay,
    )


def job_plan(scenario: SimulationScenario) -> StepPlan:
    """The operations of one of the job's steps."""
    load = scenario.workload
    return plan_of(
        SimulatedStepShape.of(scenario.parallelism, load.microbatches, gathered=load.gather_share > 0)
    )


def _parts(scenario: SimulationScenario, resources: Resources, noise: Noise) -> tuple[FloatArray, FloatArray]:
    return compute_parts(scenario, drawn_lengths(scenario, resources.length_spread[0], noise.lengths))


def _phases(replay: ReplayTimes, own: _Own, gc: FloatArray) -> dict[str, FloatArray]:
    loading = replay.fetched - replay.start[:, :-1] + own.taking
    forward, backward = (getattr(own, name) + own.stalls[name] for name in ("forward", "backward"))
    transfer = own.transfer
    alone = loading + replay.copying + forward + backward + transfer
    wait = np.maximum(replay.exchanged - replay.start[:, :-1] - alone, 0.0)
    return {
        "data_loading_seconds": loading,
        "host_to_device_seconds": replay.copying,
        "forward_seconds": forward,
        "backward_seconds": backward,
        "communication_wait_seconds": wait,
        "communication_transfer_seconds": transfer,
        "communication_seconds": wait + transfer,
        "optimizer_seconds": own.optimizer,
        "checkpoint_seconds": own.checkpoint,
        "gc_seconds": gc,
        "step_seconds": alone + wait + own.optimizer + own.checkpoint + own.between,
    }


def _own_work(scenario: SimulationScenario, resources: Resources, noise: Noise, whole: FloatArray) -> _Own:
    load, nothing = scenario.workload, np.zeros((scenario.world_size, scenario.n_steps))
    gap = launch_gaps(scenario, resources, noise.gap)
    pauses = collector_pauses(scenario, resources, noise.gc_draw)
    stalls = host_stalls(scenario, resources.host_stall + noise.hiccup + noise.event, noise.stall_draw)
    pause = {phase: pauses.get(phase, nothing) + stalls.get(phase, nothing) for phase in HOST_PHASES}
    slow = dict.fromkeys(("forward", "checkpoint", "between"), nothing)
    slow[scenario.benign.slow_step_phase] = noise.slow_step
    kernel = resources.compute_stretch * noise.job * _share_of_work(scenario, resources, whole)
    lost, compiling = resources.gpu_stall, resources.compile_stall + noise.compilation
    exchanged = exchange_seconds(scenario, resources, noise) if job_plan(scenario).shape.exchanged else None
    return _Own(
        taking=taking_seconds(scenario, noise)
        + resources.table_stall
        + gap["data_loading"]
        + pause["data_loading"],
        copy=load.host_to_device_seconds * noise.copy * inputs_over_time(scenario) * resources.copy_stretch
        + gap["host_to_device"]
        + pause["host_to_device"],
        forward=load.forward_seconds * noise.forward * kernel * resources.launch_stretch + gap["forward"],
        backward=load.backward_seconds * noise.backward * kernel + gap["backward"],
        stalls={
            "forward": 0.4 * lost
            + 0.7 * noise.warmup
            + pause["forward"]
            + slow["forward"]
            + COMPILED_IN_FORWARD * compiling,
            "backward": 0.6 * lost
            + 0.3 * noise.warmup
            + pause["backward"]
            + (1 - COMPILED_IN_FORWARD) * compiling,
        },
        hosted={
            f"{phase}_seconds": gap[phase] + pause[phase] for phase in ("forward", "backward", "optimizer")
        },
        scatter=nothing if exchanged is None else exchanged[0],
        gather=nothing if exchanged is None else exchanged[1],
        optimizer=load.optimizer_seconds
        * noise.optimizer
        * resources.compute_stretch
        * resources.launch_stretch
        + gap["optimizer"]
        + pause["optimizer"],
        checkpoint=resources.checkpoint + slow["checkpoint"],
        between=pause[BETWEEN] + slow["between"] + resources.untimed_stall,
    )


def _share_of_work(scenario: SimulationScenario, resources: Resources, whole: FloatArray) -> FloatArray:
    """Compute per rank relative to the workload's seconds: its stage's layers, its input, its machine."""
    sizes, ranks = scenario.parallelism, np.arange(scenario.world_size)
    stage, replica = np.divmod(ranks // sizes.tensor, scenario.replicas)
    share = stage_work(scenario, resources.stage_extra)[stage] * whole[replica]
    if scenario.fleet.speeds:
        share /= np.asarray(scenario.fleet.speeds)[ranks // scenario.ranks_per_node, None]
    return np.asarray(share)


def _durations(
    scenario: SimulationScenario,
    resources: Resources,
    noise: Noise,
    plan: StepPlan,
    own: _Own,
    parts: FloatArray,
) -> Durations:
    """Durations of operations: each lasts as long as that of the slowest member of its tensor group."""
    stages, width, steps = plan.shape.pipeline, scenario.replicas, scenario.n_steps

    def slowest(values: FloatArray) -> FloatArray:
        grouped = values.reshape(stages, width, scenario.parallelism.tensor, steps).max(axis=2)
        return np.asarray(grouped.transpose(2, 0, 1))

    seconds = np.zeros((steps, n_rows(plan.shape), width))

    def fill(optype: int, values: FloatArray) -> None:
        first = row_of(plan.shape, optype, 0)
        seconds[:, first : first + stages] = values

    fill(FORWARD, slowest(own.forward))
    fill(BACKWARD, slowest(own.backward))
    fill(REDUCE_SCATTER, slowest(own.scatter))
    fill(ALL_GATHER, slowest(own.gather))
    fill(OPTIMIZER, slowest(own.optimizer))
    if stages > 1 and scenario.workload.p2p_seconds:
        fill(FORWARD_SEND, stage_link_seconds(scenario, resources))
    stalled = [slowest(getattr(own, name) + own.stalls[name]) for name in ("forward", "backward")]
    lump = np.concatenate(stalled, axis=1) - seconds[:, : 2 * stages]
    ones = np.ones((steps, 1, width))
    shares = np.concatenate([parts, ones, noise.sends], axis=1)
    return Durations(seconds, shares, np.maximum(lump, 0.0), noise.place)
