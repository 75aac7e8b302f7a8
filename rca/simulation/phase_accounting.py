"""How a producer books a step: not every trainer tells waiting apart from work.

`Timing.phases` says what ranks did. Here that is written down as real jobs do: waiting that a timer around a
phase cannot tell from the phase, and time for which there is no timer.

What timers see where the host does not wait for its device: launches, and all the rest in one place.

A host launches kernels and goes on; a timer around a phase sees the launches. It waits where a number is
wanted back: for the loss right after the forward (and with it for all that the step before left to do), for
the gradients' norm in the optimizer, or at the step's end. There compute, waiting and exchange come together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.simulation.scenario import Booking, Scenario
from rca.simulation.timing import Timing, job_plan
from rca.whatif.optypes import BACKWARD

WAIT, TRANSFER = "communication_wait_seconds", "communication_transfer_seconds"
COMMUNICATION = (WAIT, TRANSFER, "communication_seconds")
LOADING, COPY, FORWARD = "data_loading_seconds", "host_to_device_seconds", "forward_seconds"
BACKWARD_PHASE, OPTIMIZER = "backward_seconds", "optimizer_seconds"
#: What a rank does before its backward, in order.
UNTIL_BACKWARD = (LOADING, COPY, FORWARD)
#: Phases of work in which all meet, by where the exchange is.
MET_IN: dict[str, tuple[str, ...]] = {
    "own phase": (),
    "backward": (BACKWARD_PHASE,),
    "layers": (FORWARD, BACKWARD_PHASE),
    "optimizer": (OPTIMIZER,),
}
#: Sharded parameters are gathered for the forward and again for the backward, and gradients scattered: each
#: moves as many bytes as the others (ZeRO, Rajbhandari et al. 2020, section 7).
GATHERED_IN_FORWARD = 1 / 3


class Booked(NamedTuple):
    """Phases as the scenario's trainer times them, by format column, and when it says that steps begin.

    All of shape (n_ranks, n_steps), seconds; beginnings since the job's first step, on one true clock.
    """

    columns: dict[str, FloatArray]
    start: FloatArray


def booked(scenario: Scenario, timing: Timing) -> Booked:
    """What the scenario's trainer would write down of a run."""
    booking = scenario.telemetry.booking
    columns = {name: values.copy() for name, values in timing.phases.items()}
    if booking.batch_shared:
        _share_batch(scenario, timing, columns)
    if booking.tensor_waits_inside:
        _lock_step(scenario, columns)
    if booking.bubbles_in != "waiting":
        _move_bubbles(scenario, timing, columns)
    if booking.transfer_skew:
        _skew_transfers(scenario, columns)
    start = timing.start
    if booking.waits_for_device != "every phase":
        start = launches(scenario, timing, columns)
    columns["communication_seconds"] = columns[WAIT] + columns[TRANSFER]
    _move_exchange(booking, timing, columns)
    _move_inputs(booking, columns)
    return Booked(columns, start)


def hidden_columns(booking: Booking) -> tuple[str, ...]:
    """Columns that this way of timing cannot fill."""
    untold = booking.exchange_in != "own phase" or booking.waits_for_device != "every phase"
    return (*(COMMUNICATION if untold else ()), *(held for held, _ in _inputs_elsewhere(booking)))


def meeting_phases(booking: Booking) -> tuple[str, ...]:
    """Phases of work that nobody ends before all have come so far, in order."""
    return MET_IN[booking.exchange_in]


def phases_holding(name: str, booking: Booking) -> tuple[str, ...]:
    """A phase, and the one that contains it where it is not timed by itself."""
    return (name, *(container for held, container in _inputs_elsewhere(booking) if held == name))


def needs_ends(scenario: Scenario) -> bool:
    """Whether booking looks at when single operations ended."""
    return scenario.telemetry.booking.bubbles_in != "waiting"


def _inputs_elsewhere(booking: Booking) -> tuple[tuple[str, str], ...]:
    """Phases of the inputs that are timed within another one, and within which."""
    loading = ((LOADING, FORWARD),) if booking.loading_in == "forward" else ()
    copied: dict[str, tuple[tuple[str, str], ...]] = {
        "own phase": (), "data loading": ((COPY, LOADING),), "forward": ((COPY, FORWARD),),
    }  # fmt: skip
    return (*copied[booking.copy_in], *loading)


def _move_inputs(booking: Booking, columns: dict[str, FloatArray]) -> None:
    for held, container in _inputs_elsewhere(booking):
        columns[container] += columns[held]
        columns[held] = np.zeros_like(columns[held])


def _move_bubbles(scenario: Scenario, timing: Timing, columns: dict[str, FloatArray]) -> None:
    """Leave as waiting what was waited for other replicas."""
    waited = np.minimum(columns[WAIT], _exchange_wait(scenario, timing))
    if scenario.telemetry.booking.bubbles_in == "backward":
        columns[BACKWARD_PHASE] += columns[WAIT] - waited
    columns[WAIT] = waited


def _move_exchange(booking: Booking, timing: Timing, columns: dict[str, FloatArray]) -> None:
    """Book the exchange where the trainer does; what is told there is told nowhere else."""
    if booking.exchange_in == "own phase":
        return
    if booking.exchange_in == "layers":
        _meet_in_layers(timing, columns)
    else:
        columns[MET_IN[booking.exchange_in][0]] += columns["communication_seconds"]
    for name in COMMUNICATION:
        columns[name] = np.zeros_like(columns[name])


def _share_batch(scenario: Scenario, timing: Timing, columns: dict[str, FloatArray]) -> None:
    """One rank of a tensor group loads for all: nobody has the batch before the last one asks for it."""
    loaded = timing.start + columns["data_loading_seconds"]
    late = np.minimum(_of_group(scenario, loaded) - loaded, columns[WAIT])
    columns["data_loading_seconds"] += late
    columns[WAIT] -= late


def _lock_step(scenario: Scenario, columns: dict[str, FloatArray]) -> None:
    """A tensor group's collectives lie within forward and backward: all take as long as the slowest."""
    for name in ("forward_seconds", "backward_seconds"):
        longer = np.minimum(_of_group(scenario, columns[name]) - columns[name], columns[WAIT])
        columns[name] += longer
        columns[WAIT] -= longer


def _meet_in_layers(timing: Timing, columns: dict[str, FloatArray]) -> None:
    """All gather a layer's parameters before they compute it: who is late holds up the others' forward.

    What it lasts until all have done a forward, they wait in it; for what comes later, in the backward.
    """
    done = timing.start + sum(columns[name] for name in UNTIL_BACKWARD)
    early = np.minimum(done.max(axis=0) - done, columns[WAIT])
    gathered = GATHERED_IN_FORWARD * columns[TRANSFER]
    columns["forward_seconds"] += early + gathered
    columns["backward_seconds"] += columns["communication_seconds"] - early - gathered


def _skew_transfers(scenario: Scenario, columns: dict[str, FloatArray]) -> None:
    """Book part of some ranks' transfers as waiting: they are in the collective, and no data came yet.

    Somebody of each exchange always arrives last, and takes none of it for waiting.
    """
    booking, grid = scenario.telemetry.booking, _exchanges(scenario)
    rng = np.random.default_rng([scenario.seed, 14])
    if booking.skewed_by == "node":
        later = _behind_sender(rng, grid // scenario.ranks_per_node)
    else:
        later = _along_ring(rng, *grid.shape)
    moved = np.empty(scenario.world_size)
    moved[grid] = booking.transfer_skew * (later - later.min(axis=0))
    columns[WAIT] += moved[:, None] * columns[TRANSFER]
    columns[TRANSFER] *= 1 - moved[:, None]


def _exchanges(scenario: Scenario) -> IntArray:
    """Ranks that exchange with each other, one group per column, (n_replicas, n_groups)."""
    sizes = scenario.parallelism
    ranks = np.arange(scenario.world_size).reshape(sizes.pipeline, scenario.replicas, sizes.tensor)
    return ranks.transpose(1, 0, 2).reshape(scenario.replicas, -1)


def _along_ring(rng: np.random.Generator, n_replicas: int, n_groups: int) -> FloatArray:
    """How late data comes by the place in the ring, from 0 to 1, (n_replicas, n_groups)."""
    place = np.arange(n_replicas)[:, None] / n_replicas + rng.random(n_groups)
    return np.asarray(0.5 * (1 + np.cos(2 * np.pi * place)))


def _behind_sender(rng: np.random.Generator, node: IntArray) -> FloatArray:
    """The same where an exchange's first rank on a node sends and the others get it from there."""
    sends = np.diff(node, axis=0, prepend=-1) > 0
    return np.where(sends, 0.0, rng.uniform(0.6, 1.0, node.shape))


def _of_group(scenario: Scenario, values: FloatArray) -> FloatArray:
    """The largest of each tensor group, for each of its ranks."""
    width = scenario.parallelism.tensor
    grouped = values.reshape(-1, width, values.shape[1]).max(axis=1)
    return np.repeat(grouped, width, axis=0)


def _exchange_wait(scenario: Scenario, timing: Timing) -> FloatArray:
    """Waiting for the last replica once all own microbatches are done, without the pipeline's bubbles."""
    plan, ends = job_plan(scenario), timing.course.ends
    if ends is None:
        raise ValueError("the bubbles of a run can only be told if the ends of operations were kept")
    done = np.stack(
        [
            ends[(plan.optype == BACKWARD) & (plan.stage == stage)].max(axis=0)
            for stage in range(plan.shape.pipeline)
        ]
    )
    wait = done.max(axis=1, keepdims=True) - done
    return np.repeat(wait.reshape(-1, wait.shape[2]), scenario.parallelism.tensor, axis=0)


_LAUNCHED = (FORWARD, BACKWARD_PHASE, OPTIMIZER)
EXCHANGE = ("communication_wait_seconds", "communication_transfer_seconds")
#: How much launching the same kernels varies from step to step.
SCATTER = 0.05


def launches(scenario: Scenario, timing: Timing, columns: dict[str, FloatArray]) -> FloatArray:
    """Move what the host does not wait for to where it does, in place.

    Returns
    -------
    ndarray of shape (n_ranks, n_steps), seconds
        When hosts begin their steps, since the job's first step.
    """
    place, start = scenario.telemetry.booking.waits_for_device, timing.start
    left = {name: _left(scenario, timing, name, columns) for name in _LAUNCHED}
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


def _left(scenario: Scenario, timing: Timing, name: str, columns: dict[str, FloatArray]) -> FloatArray:
    """What a phase's launches leave to the device, taken off the phase; seconds, (n_ranks, n_steps)."""
    spent, hosted = columns[name], timing.hosted.get(name, 0.0)
    rng = np.random.default_rng([scenario.seed, 6, _LAUNCHED.index(name)])
    usual = scenario.telemetry.booking.launch_share * getattr(scenario.workload, name)
    launched = usual * np.exp(SCATTER * rng.standard_normal(spent.shape))
    columns[name] = np.minimum(spent, launched + hosted)
    return np.asarray(spent - columns[name])
