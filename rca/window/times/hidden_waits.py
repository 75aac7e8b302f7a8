"""Separate waiting from work in phases that contain both.

Trainers time phases where it is easy, so waiting may be counted as work:

- One rank of a tensor group reads the batch for all. The data loading of its peers contains the wait for it.
- Gradients are exchanged behind the backward pass. All ranks' backward is then as long as the last rank's. If
  the host does not wait for the device before, the optimizer is.
- A pipeline's bubbles may be in no phase at all.

Without a correction, the ranks that come early look slow, because they wait longer.

In a synchronising phase, members begin apart and end together. The time before the last of them begins is
waiting, and the rest is work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.robust import nan_median, zero_if_nan
from rca.window.job import Topology
from rca.window.times.phases import PhaseArrays
from rca.window.times.untimed_work import with_untimed_work

#: Phases before the exchange of gradients, in order.
BEFORE_EXCHANGE = ("data_loading_seconds", "host_to_device_seconds", "forward_seconds", "backward_seconds")
WAIT, TRANSFER, BOTH = (
    "communication_wait_seconds", "communication_transfer_seconds", "communication_seconds",
)  # fmt: skip
OPTIMIZER = "optimizer_seconds"
AFTER_EXCHANGE = (OPTIMIZER, "checkpoint_seconds")
#: A pipeline's untimed time counts as bubbles only if all of these phases are timed.
TIMED = frozenset({"data_loading_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds"})
#: A case (group and step) counts if its members begin at least this far apart, as a share of the step.
MIN_BEGIN_SPREAD = 0.02
#: Members end together if the spread of their ends is at most this share of the spread of their begins. The
#: median over the cases counts; there have to be at least so many cases.
MAX_END_RATIO, MIN_CASES = 0.3, 6
#: From this share of a step on, a pipeline's time in no phase is bubbles; less is what the timers miss.
UNTIMED_BUBBLES = 0.04


def without_hidden_waits(phases: PhaseArrays, topology: Topology) -> PhaseArrays:
    """The phases with their hidden waiting moved to the communication, if that has columns.

    Without such columns the waiting is only taken off: own work is then the sum of the phases.

    Returns
    -------
    PhaseArrays
        The same object where nothing is moved.
    """
    unit = _usual(phases.phase("step_seconds"))
    if not unit > 0 or phases.n_ranks < 2:
        return phases
    if topology.n_stages == 1 and not _exchange_is_timed(phases):
        phases = with_untimed_work(phases, MIN_BEGIN_SPREAD * unit)
    seconds = dict(phases.seconds)
    waited = np.zeros(phases.present.shape)
    groups = list(_groups(topology))
    # Unix seconds as floats leave no digits for microseconds.
    began = phases.start_time - np.nanmin(phases.start_time)
    for name in _synchronising(phases):
        spent = phases.seconds.get(name)
        if spent is None:
            continue
        for group, one_clock in groups:
            wait = _waited_together(began, seconds[name], group, MIN_BEGIN_SPREAD * unit, one_clock=one_clock)
            if wait is not None:
                seconds[name] = seconds[name] - wait
                waited += wait
                began = began + wait
        began = began + seconds[name]
    if topology.n_stages > 1:
        waited += _bubbles(phases, unit)
    if waited.any():
        seconds |= {name: seconds[name] + waited for name in (WAIT, BOTH) if name in seconds}
    same = all(held is phases.seconds[name] for name, held in seconds.items())
    return phases if same else replace(phases, seconds=seconds)


def _synchronising(phases: PhaseArrays) -> tuple[str, ...]:
    """Phases that may contain waiting, in order.

    Timers around kernel launches count compute, waiting and exchange where the host waits for its device.
    That is mostly an optimizer that needs the norm of the gradients.
    """
    return BEFORE_EXCHANGE if _exchange_is_timed(phases) else (*BEFORE_EXCHANGE, OPTIMIZER)


def _exchange_is_timed(phases: PhaseArrays) -> bool:
    return not phases.seconds.keys().isdisjoint({WAIT, TRANSFER, BOTH})


def _groups(topology: Topology) -> Iterator[tuple[IntArray, bool]]:
    """Groups that may synchronise within a phase, smallest first, and whether members share a clock."""
    if topology.n_workers < topology.n_ranks:
        placed = np.unique(np.column_stack([topology.worker, topology.node]), axis=0)
        yield topology.worker, placed.shape[0] == topology.n_workers
    yield topology.stage, len(topology.node_names) == 1 and bool((topology.node >= 0).all())


def _waited_together(
    began: FloatArray, spent: FloatArray, group: IntArray, apart: float, *, one_clock: bool
) -> FloatArray | None:
    """Time between a rank's begin and its group's last begin; None if members do not end together.

    Parameters
    ----------
    began, spent : ndarray of shape (n_ranks, n_steps), seconds
    group : ndarray of shape (n_ranks,), int
    apart : float, seconds
    one_clock : bool
        With several clocks, a clock that is behind can hide a slow rank in all steps alike. Then only the
        variation from step to step counts.
    """
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    began, spent = began[order], spent[order]
    ended = began + spent
    known = np.isfinite(ended)
    if not _end_together(began, ended, known, starts, apart, one_clock=one_clock):
        return None
    sizes = np.diff(np.append(starts, group.size))
    if one_clock:
        last, _ = _extremes(began, known, starts)
        wait = np.repeat(last, sizes, axis=0) - began
    else:
        # Ranks that leave a phase together waited the difference of their durations. A rank that ends later
        # than it usually does was working.
        _, least = _extremes(spent, known, starts)
        later = np.maximum(_without_offsets(np.where(known, ended, np.nan)), 0.0)
        wait = spent - np.repeat(least, sizes, axis=0) - np.where(later > apart, later, 0.0)
    found = np.zeros(began.shape)
    found[order] = np.where(known, np.clip(wait, 0.0, spent), 0.0)
    return found


def _end_together(
    began: FloatArray,
    ended: FloatArray,
    known: BoolArray,
    starts: IntArray,
    apart: float,
    *,
    one_clock: bool,
) -> bool:
    """Whether the groups that begin apart end together, in the median of at least `MIN_CASES` cases."""
    if not one_clock:
        began = _without_offsets(np.where(known, began, np.nan))
    last, first = _extremes(began, known, starts)
    cases = (last - first > apart) & np.isfinite(first)
    if np.count_nonzero(cases) < MIN_CASES:
        return False
    if not one_clock:
        ended = _without_offsets(np.where(known, ended, np.nan))
    end, first_end = _extremes(ended, known, starts)
    ratio = (end - first_end)[cases] / (last - first)[cases]
    return bool(np.median(ratio) <= MAX_END_RATIO)


def _without_offsets(times: FloatArray) -> FloatArray:
    """Times relative to the step's median, less each rank's median offset."""
    relative = times - nan_median(times)
    return relative - nan_median(relative, axis=1)[:, None]


def _extremes(values: FloatArray, known: BoolArray, starts: IntArray) -> tuple[FloatArray, FloatArray]:
    """Largest and smallest known value per group and step; infinite where nothing is known."""
    high = np.maximum.reduceat(np.where(known, values, -np.inf), starts, axis=0)
    low = np.minimum.reduceat(np.where(known, values, np.inf), starts, axis=0)
    return high, low


def _bubbles(phases: PhaseArrays, unit: float) -> FloatArray:
    """A pipelined job's time in no phase, shape (n_ranks, n_steps); 0 if timers may have missed as much."""
    nothing = np.zeros(phases.present.shape)
    if not phases.seconds.keys() >= TIMED:
        return nothing
    timed = nothing.copy()
    for name in (*BEFORE_EXCHANGE, *_measured_exchange(phases), *AFTER_EXCHANGE):
        timed += zero_if_nan(phases.phase(name))
    untimed = phases.phase("step_seconds") - timed
    known = np.isfinite(untimed) & np.isfinite(phases.phase("backward_seconds"))
    if not known.any() or float(np.median(untimed[known])) < UNTIMED_BUBBLES * unit:
        return nothing
    return np.where(known, np.maximum(untimed, 0.0), 0.0)


def _measured_exchange(phases: PhaseArrays) -> tuple[str, ...]:
    split = [name for name in (WAIT, TRANSFER) if name in phases.seconds]
    return tuple(split) or (BOTH,)


def _usual(step: FloatArray) -> float:
    known = step[np.isfinite(step)]
    return float(np.median(known)) if known.size else 0.0
