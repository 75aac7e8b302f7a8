"""Phases as a trainer's timers measure them.

`Timing.phases` holds what ranks really do. A timer around a phase cannot separate waiting from work inside
it, and some times have no timer.

Where the host does not wait for its device, timers see the launches of kernels only. The host waits where it
needs a number. That is for the loss after the forward, for the gradients' norm in the optimizer, or at the
step's end. The phase of that wait holds the compute, waiting and exchange of the earlier launches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.lab.simulation.scenario import PhaseAccounting, SimulationScenario
from rca.lab.simulation.timing import Timing, job_plan
from rca.whatif.optypes import BACKWARD

WAIT, TRANSFER = "communication_wait_seconds", "communication_transfer_seconds"
COMMUNICATION = (WAIT, TRANSFER, "communication_seconds")
LOADING, COPY, FORWARD = "data_loading_seconds", "host_to_device_seconds", "forward_seconds"
BACKWARD_PHASE, OPTIMIZER = "backward_seconds", "optimizer_seconds"
#: Phases before the backward, in order.
UNTIL_BACKWARD = (LOADING, COPY, FORWARD)
#: Phases of work that contain the exchange, by `PhaseAccounting.exchange_in`.
PHASES_WITH_EXCHANGE: dict[str, tuple[str, ...]] = {
    "own phase": (),
    "backward": (BACKWARD_PHASE,),
    "layers": (FORWARD, BACKWARD_PHASE),
    "optimizer": (OPTIMIZER,),
}
#: Sharded jobs gather parameters for the forward and for the backward, and scatter gradients. All three move
#: the same number of bytes (ZeRO, Rajbhandari et al. 2020, section 7).
GATHERED_IN_FORWARD = 1 / 3
_LAUNCHED = (FORWARD, BACKWARD_PHASE, OPTIMIZER)
EXCHANGE = ("communication_wait_seconds", "communication_transfer_seconds")
#: Spread of the logarithm of a phase's launch time between steps.
LAUNCH_TIME_SPREAD = 0.05


class AccountedPhases(NamedTuple):
    """Phases as the scenario's trainer times them, by format column, and starts of the steps.

    All of shape (n_ranks, n_steps), seconds; starts since the job's first step, on one true clock.
    """

    columns: dict[str, FloatArray]
    start: FloatArray


def accounted_phases(scenario: SimulationScenario, timing: Timing) -> AccountedPhases:
    """Return the phases of a run as the scenario's trainer times them."""
    phase_accounting = scenario.telemetry.phase_accounting
    columns = {name: values.copy() for name, values in timing.phases.items()}
    if phase_accounting.batch_shared:
        _share_batch(scenario, timing, columns)
    if phase_accounting.tensor_waits_inside:
        _lock_step(scenario, columns)
    if phase_accounting.bubbles_in != "waiting":
        _move_pipeline_bubbles(scenario, timing, columns)
    if phase_accounting.transfer_skew:
        _skew_transfers(scenario, columns)
    start = timing.start
    if phase_accounting.waits_for_device != "every phase":
        start = account_launches(scenario, timing, columns)
    columns["communication_seconds"] = columns[WAIT] + columns[TRANSFER]
    _end_steps_early(phase_accounting, timing, columns)
    _move_exchange(phase_accounting, timing, columns)
    _move_inputs(phase_accounting, columns)
    return AccountedPhases(columns, start)


def _end_steps_early(
    phase_accounting: PhaseAccounting, timing: Timing, columns: dict[str, FloatArray]
) -> None:
    """Take what follows the timer of whole steps out of them; the next step begins as late as before."""
    if phase_accounting.step_ends != "after all":
        columns["step_seconds"] = columns["step_seconds"] - timing.between
    if phase_accounting.step_ends == "before saves":
        columns["step_seconds"] = columns["step_seconds"] - columns["checkpoint_seconds"]


def columns_not_timed(phase_accounting: PhaseAccounting) -> tuple[str, ...]:
    """Columns that these timers cannot fill."""
    untimed = (
        phase_accounting.exchange_in != "own phase" or phase_accounting.waits_for_device != "every phase"
    )
    held = (held for held, _ in _inputs_elsewhere(phase_accounting))
    saves = ("checkpoint_seconds",) if phase_accounting.step_ends == "before saves" else ()
    return (*(COMMUNICATION if untimed else ()), *held, *saves)


def phases_that_wait_for_all(phase_accounting: PhaseAccounting) -> tuple[str, ...]:
    """Phases of work that no rank ends before all ranks have reached them, in order."""
    return PHASES_WITH_EXCHANGE[phase_accounting.exchange_in]


def phases_holding(name: str, phase_accounting: PhaseAccounting) -> tuple[str, ...]:
    """A phase, and the phase that contains it where it has no timer of its own."""
    return (name, *(container for held, container in _inputs_elsewhere(phase_accounting) if held == name))


def needs_ends(scenario: SimulationScenario) -> bool:
    """Whether the accounting needs the ends of single operations."""
    return scenario.telemetry.phase_accounting.bubbles_in != "waiting"


def _inputs_elsewhere(phase_accounting: PhaseAccounting) -> tuple[tuple[str, str], ...]:
    """Pairs of an input phase without its own timer and the phase that contains it."""
    loading = ((LOADING, FORWARD),) if phase_accounting.loading_in == "forward" else ()
    copied: dict[str, tuple[tuple[str, str], ...]] = {
        "own phase": (), "data loading": ((COPY, LOADING),), "forward": ((COPY, FORWARD),),
    }  # fmt: skip
    return (*copied[phase_accounting.copy_in], *loading)


def _move_inputs(phase_accounting: PhaseAccounting, columns: dict[str, FloatArray]) -> None:
    for held, container in _inputs_elsewhere(phase_accounting):
        columns[container] += columns[held]
        columns[held] = np.zeros_like(columns[held])


def _move_pipeline_bubbles(
    scenario: SimulationScenario, timing: Timing, columns: dict[str, FloatArray]
) -> None:
    """Keep only the waiting for other replicas in the waiting column."""
    waited = np.minimum(columns[WAIT], _exchange_wait(scenario, timing))
    if scenario.telemetry.phase_accounting.bubbles_in == "backward":
        columns[BACKWARD_PHASE] += columns[WAIT] - waited
    columns[WAIT] = waited


def _move_exchange(phase_accounting: PhaseAccounting, timing: Timing, columns: dict[str, FloatArray]) -> None:
    """Move the exchange into the phase whose timer contains it."""
    if phase_accounting.exchange_in == "own phase":
        return
    if phase_accounting.exchange_in == "layers":
        _meet_in_layers(timing, columns)
    else:
        columns[PHASES_WITH_EXCHANGE[phase_accounting.exchange_in][0]] += columns["communication_seconds"]
    for name in COMMUNICATION:
        columns[name] = np.zeros_like(columns[name])


def _share_batch(scenario: SimulationScenario, timing: Timing, columns: dict[str, FloatArray]) -> None:
    """One rank of a tensor group loads for all: no rank has the batch before the last one needs it."""
    loaded = timing.start + columns["data_loading_seconds"]
    late = np.minimum(_of_group(scenario, loaded) - loaded, columns[WAIT])
    columns["data_loading_seconds"] += late
    columns[WAIT] -= late


def _lock_step(scenario: SimulationScenario, columns: dict[str, FloatArray]) -> None:
    """A tensor group's collectives lie within forward and backward: all ranks take as long as the slowest."""
    for name in ("forward_seconds", "backward_seconds"):
        longer = np.minimum(_of_group(scenario, columns[name]) - columns[name], columns[WAIT])
        columns[name] += longer
        columns[WAIT] -= longer


def _meet_in_layers(timing: Timing, columns: dict[str, FloatArray]) -> None:
    """All ranks gather a layer's parameters before they compute it: a late rank delays the others' forward.

    The wait until all ranks have done a forward is in the forward; later waits are in the backward.
    """
    done = timing.start + sum(columns[name] for name in UNTIL_BACKWARD)
    early = np.minimum(done.max(axis=0) - done, columns[WAIT])
    gathered = GATHERED_IN_FORWARD * columns[TRANSFER]
    columns["forward_seconds"] += early + gathered
    columns["backward_seconds"] += columns["communication_seconds"] - early - gathered


def _skew_transfers(scenario: SimulationScenario, columns: dict[str, FloatArray]) -> None:
    """Count part of some ranks' transfers as waiting: they are in the collective, and data comes later.

    One rank of each exchange receives its data first and counts nothing as waiting.
    """
    phase_accounting, grid = scenario.telemetry.phase_accounting, _exchanges(scenario)
    rng = np.random.default_rng([scenario.seed, 14])
    if phase_accounting.skewed_by == "node":
        later = _behind_sender(rng, grid // scenario.ranks_per_node)
    else:
        later = _along_ring(rng, *grid.shape)
    moved = np.empty(scenario.world_size)
    moved[grid] = phase_accounting.transfer_skew * (later - later.min(axis=0))
    columns[WAIT] += moved[:, None] * columns[TRANSFER]
    columns[TRANSFER] *= 1 - moved[:, None]


def _exchanges(scenario: SimulationScenario) -> IntArray:
    """Ranks that exchange with each other, one group per column, shape (n_replicas, n_groups)."""
    sizes = scenario.parallelism
    ranks = np.arange(scenario.world_size).reshape(sizes.pipeline, scenario.replicas, sizes.tensor)
    return ranks.transpose(1, 0, 2).reshape(scenario.replicas, -1)


def _along_ring(rng: np.random.Generator, n_replicas: int, n_groups: int) -> FloatArray:
    """Relative delay of data from 0 to 1 by the place in the ring, (n_replicas, n_groups)."""
    place = np.arange(n_replicas)[:, None] / n_replicas + rng.random(n_groups)
    return np.asarray(0.5 * (1 + np.cos(2 * np.pi * place)))


def _behind_sender(rng: np.random.Generator, node: IntArray) -> FloatArray:
    """Relative delay where the first rank of a node sends the data on to the others of its node."""
    sends = np.diff(node, axis=0, prepend=-1) > 0
    return np.where(sends, 0.0, rng.uniform(0.6, 1.0, node.shape))


def _of_group(scenario: SimulationScenario, values: FloatArray) -> FloatArray:
    """Largest value of each tensor group, for each of its ranks."""
    width = scenario.parallelism.tensor
    grouped = values.reshape(-1, width, values.shape[1]).max(axis=1)
    return np.repeat(grouped, width, axis=0)


def _exchange_wait(scenario: SimulationScenario, timing: Timing) -> FloatArray:
    """Seconds of waiting for the last replica after all own microbatches, without the pipeline's bubbles."""
    plan, ends = job_plan(scenario), timing.replay.ends
    if ends is None:
        raise ValueError("bubbles need the ends of operations; run the steps with keep_ends=True")
    done = np.stack(
        [
            ends[(plan.optype == BACKWARD) & (plan.stage == stage)].max(axis=0)
            for stage in range(plan.shape.pipeline)
        ]
    )
    wait = done.max(axis=1, keepdims=True) - done
    return np.repeat(wait.reshape(-1, wait.shape[2]), scenario.parallelism.tensor, axis=0)


def account_launches(
    scenario: SimulationScenario, timing: Timing, columns: dict[str, FloatArray]
) -> FloatArray:
    """Move time on the device to the phase in which the host waits for it, in place.

    Returns
    -------
    ndarray of shape (n_ranks, n_steps), seconds
        When hosts begin their steps, since the job's first step.
    """
    place, start = scenario.telemetry.phase_accounting.waits_for_device, timing.start
    left = {name: _take_from_launches(scenario, timing, name, columns) for name in _LAUNCHED}
    exchange = sum(columns[name] for name in EXCHANGE)
    for name in EXCHANGE:
        columns[name] = np.zeros(start.shape)
    if place == "optimizer":
        columns[OPTIMIZER] += left[FORWARD] + left[BACKWARD_PHASE] + exchange + left[OPTIMIZER]
    elif place == "forward":
        later = left[BACKWARD_PHASE] + exchange + left[OPTIMIZER]
        carried = np.concatenate([np.zeros((start.shape[0], 1)), later[:, :-1]], axis=1)
        columns[FORWARD] += left[FORWARD] + carried
        columns["step_seconds"] += carried - later
        return np.asarray(start - carried)
    return start


def _take_from_launches(
    scenario: SimulationScenario, timing: Timing, name: str, columns: dict[str, FloatArray]
) -> FloatArray:
    """Subtract the device time after a phase's launches from the phase; seconds, (n_ranks, n_steps)."""
    spent, hosted = columns[name], timing.hosted.get(name, 0.0)
    rng = np.random.default_rng([scenario.seed, 6, _LAUNCHED.index(name)])
    usual = scenario.telemetry.phase_accounting.launch_share * getattr(scenario.workload, name)
    launched = usual * np.exp(LAUNCH_TIME_SPREAD * rng.standard_normal(spent.shape))
    columns[name] = np.minimum(spent, launched + hosted)
    return np.asarray(spent - columns[name])
