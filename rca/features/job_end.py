"""End of the job: the traces of a crash or a hang in the step rows and in the events."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.end_events import (
    End,
    Event,
    count_trouble,
    dead_ranks,
    end_tolerance,
    ended_normally,
    failure_reported,
    no_trouble_reported,
    ranks_in_events,
    ranks_that_failed,
    ranks_with_link_down,
    read_events,
)
from rca.features.end_origin import end_origin, ranks_that_lost_a_peer
from rca.features.post_stop_signals import FinalSignals, PostStopSignals
from rca.robust import nan_median
from rca.window.times.phases import PhaseArrays
from rca.window.window import Window

#: Order of the phases in a step. A rank that stops leaves the later ones unmeasured.
PHASE_ORDER = (
    "data_loading_seconds",
    "host_to_device_seconds",
    "forward_seconds",
    "backward_seconds",
    "communication_wait_seconds",
    "communication_transfer_seconds",
    "communication_seconds",
    "optimizer_seconds",
    "step_seconds",
)
#: A job whose first row has at most this step number may start in the window.
MAX_START_STEP = 1
#: Margins before and after the rows are alike if they differ by at most this share of the one before.
MARGIN_TOLERANCE = 0.2
#: A margin is a scrape or two: at most so many seconds (or rows, if longer), and this share of the window.
MAX_MARGIN_SECONDS, MAX_MARGIN_ROWS, MAX_MARGIN_SHARE = 150.0, 5, 0.25
#: Kinds of events before the first row that show a starting job.
START_EVENTS = frozenset({"restart", "process_exit"})
#: Rows that are more than so many usual steps apart stand for several steps each.
SPARSE_ROW_STEPS = 1.5


@dataclass(frozen=True)
class JobEnd:
    """Progress of every rank, and time without progress of the job.

    Attributes
    ----------
    progress : ndarray of shape (n_ranks,), steps
        Finished steps minus those of the furthest rank: 0 for the furthest, negative for the others. The
        measured phases of an unfinished step count as a fraction.
    behind : ndarray of shape (n_ranks,), steps
        The same minus the median rank; negative if the rank stopped before the others.
    unfinished : ndarray of shape (n_ranks,), bool
        The rank began its last row and did not finish it.
    fatal, missed : ndarray of shape (n_ranks,), bool
        A fatal event, or a missed heartbeat or collective, names the rank or its node.
    died : ndarray of shape (n_ranks,), bool
        The rank's process failed or was killed at the end of progress, before any rank was missed.
    origin : ndarray of shape (n_ranks,), bool
        By the events, the end began with this rank, alone or with others of its node.
    lost : ndarray of shape (n_ranks,), bool
        The rank lost a peer at the end of progress, by the events, so the end did not begin with it.
    link_down : ndarray of shape (n_ranks,), bool
        A port of the rank's node was down.
    failed : ndarray of shape (n_ranks,), bool
        Since the first row, an event reports that the rank's process or device failed for good.
    steps_since_progress : float, steps
        From the last sign of progress to the end of the window, in usual steps (in rows, if a row stands for
        several steps). 0 after a normal end. `with_final_signals` subtracts what is no sign of a stop.
    fatal_delay : float, steps
        From the last sign of progress to the first fatal event; NaN without one. A crash stops the job at
        once. A hung process is killed by a watchdog much later.
    cut_margin : float, steps
        Part of `steps_since_progress` that the way in which the window was cut may explain.
    failure_reported : bool
        Since the last sign of progress an event named a rank that failed or was missed.
    no_trouble : bool
        There are events, and none reports trouble around or since the last sign of progress.
    trouble_events : int
        Events around or since the last sign of progress that report trouble.
    all_released : bool
        All ranks did as many steps and released their devices at once, and no event reports trouble.
    cpu_ratio : ndarray of shape (n_ranks,), ratio, or None
        CPU time of every rank's processes at the end of the window, relative to before the stop.
    """

    progress: FloatArray
    behind: FloatArray
    unfinished: BoolArray
    fatal: BoolArray
    missed: BoolArray
    died: BoolArray
    origin: BoolArray
    lost: BoolArray
    link_down: BoolArray
    failed: BoolArray
    steps_since_progress: float
    fatal_delay: float
    cut_margin: float = 0.0
    failure_reported: bool = False
    no_trouble: bool = False
    trouble_events: int = 0
    all_released: bool = False
    cpu_ratio: FloatArray | None = None

    @classmethod
    def from_window(cls, window: Window, phases: PhaseArrays, step_reference: float) -> JobEnd:
        """Read the end of a window whose usual step takes `step_reference` seconds."""
        topology = window.job.topology
        last = phases.last_column
        seen = phases.present.any(axis=1)
        ranks = np.arange(phases.n_ranks)
        finished = np.isfinite(phases.phase("step_seconds")[ranks, last])
        reached = np.where(finished, last + 1.0, last + _share_done(phases, last))
        progress = np.where(seen, reached - reached[seen].max(), np.nan)
        since_progress = fatal_delay = margin = np.nan
        reported = no_trouble = False
        trouble = 0
        died = origin = lost = failed = np.zeros(phases.n_ranks, dtype=bool)
        events = read_events(window)
        fatal, missed, first_fatal = ranks_in_events(events, topology)
        sign = _last_sign(phases)
        if not np.isfinite(step_reference) and failure_reported(events, sign):
            # No step has a length, but its first one was ended: time counts in seconds.
            step_reference = 1.0
        if np.isfinite(step_reference):
            since_progress, margin = _steps_since_progress(window, phases, events, sign, step_reference)
            reported = failure_reported(events, sign - step_reference)
            no_trouble = no_trouble_reported(events, sign - end_tolerance(step_reference))
            trouble = count_trouble(events, sign - end_tolerance(step_reference))
            if not reported and ended_normally(events, topology, sign, step_reference):
                since_progress = 0.0
            fatal_delay = (first_fatal - sign) / step_reference
            begun = np.where(np.isfinite(phases.start_time), phases.start_time, -np.inf).max(axis=1)
            end = End(topology, sign, begun - step_reference, step_reference)
            died, origin = dead_ranks(events, end), end_origin(events, end)
            lost = ranks_that_lost_a_peer(events, end) & ~origin
            # A process that hangs keeps its connections.
            died = died | origin if lost.any() else died
            failed = ranks_that_failed(events, topology, _first_start(phases))
        return cls(
            progress=progress,
            behind=progress - nan_median(progress[:, None])[0],
            unfinished=seen & ~finished,
            fatal=fatal,
            missed=missed,
            died=died,
            origin=origin,
            lost=lost,
            link_down=ranks_with_link_down(events, topology),
            failed=failed,
            steps_since_progress=since_progress,
            fatal_delay=fatal_delay,
            cut_margin=margin,
            failure_reported=reported,
            no_trouble=no_trouble,
            trouble_events=trouble,
        )

    @property
    def broke_off(self) -> bool:
        """Whether a rank lost a peer within its last step: the job stopped, whatever else is measured."""
        return bool((self.lost & self.unfinished).any())

    @property
    def left_behind(self) -> BoolArray:
        """Ranks before which the others are, in a step that was begun and not finished; shape (n_ranks,).

        All false if these are more than half of the ranks, or if a step was finished by all that began it.
        """
        behind: BoolArray = np.nan_to_num(self.behind) < 0
        few = 0 < 2 * int(behind.sum()) <= behind.size
        return behind & (few and bool(self.unfinished.any()))

    def with_released_devices(self, signals: PostStopSignals) -> JobEnd:
        """The same end, without a stop if all ranks release devices at once and events show no trouble.

        A finished or cancelled job ends like this. After a stop some ranks still wait.
        """
        alike = not self.unfinished.any() and bool((self.behind == 0).all())
        if not self.no_trouble or not alike or not signals.all_devices_released:
            return self
        return replace(self, steps_since_progress=0.0, all_released=True)

    def with_final_signals(self, signals: FinalSignals) -> JobEnd:
        """The same end; time without rows counts only as far as it is a sign of a stop.

        - If all machines work, rows are only late, unless a step was begun and not finished.
        - If no machine is idle, the margin of the window is subtracted.
        - If a failure was reported, everything counts.
        """
        since_progress = self.steps_since_progress
        if not self.failure_reported and signals.working and not self.unfinished.any():
            since_progress = 0.0
        elif not self.failure_reported and self.cut_margin > 0 and not signals.idle:
            since_progress = max(0.0, since_progress - self.cut_margin)
        return replace(self, steps_since_progress=since_progress, cpu_ratio=signals.cpu_ratio)


def _steps_since_progress(
    window: Window, phases: PhaseArrays, events: list[Event], sign: float, step: float
) -> tuple[float, float]:
    """Steps from the last sign of progress to the window's end, and how many of them may be its margin.

    Samples may be cut wider than rows, at both ends. So the time before the first row gives the margin, if it
    is a scrape or two and not most of the window. A job that starts in the window has such a time as well, by
    its step numbers or its events. Then it is a margin only if as much time passed after the last row.
    """
    after, interval = window.job.end - sign, _row_seconds(phases, step)
    first = _first_start(phases)
    before = max(0.0, first - window.job.start)
    alike = abs(after - before) <= MARGIN_TOLERANCE * before
    longest = max(MAX_MARGIN_SECONDS, MAX_MARGIN_ROWS * interval)
    short = before <= min(longest, MAX_MARGIN_SHARE * (window.job.end - window.job.start))
    starting = int(phases.steps[0]) <= MAX_START_STEP or any(
        event.kind in START_EVENTS and event.time < first for event in events
    )
    margin = before if short and (alike or not starting) else 0.0
    return max(0.0, after / interval - 1.0), margin / interval


def _first_start(phases: PhaseArrays) -> float:
    """Begin of the first rows, Unix seconds: the median over ranks."""
    began = np.where(np.isfinite(phases.start_time), phases.start_time, np.inf).min(axis=1)
    return float(np.median(began[np.isfinite(began)]))


def _row_seconds(phases: PhaseArrays, step_reference: float) -> float:
    """Seconds between a rank's rows: a usual step, or more if a row stands for several steps."""
    apart = np.diff(phases.start_time, axis=1)
    known = apart[np.isfinite(apart)]
    usual = float(np.median(known)) if known.size else 0.0
    return usual if usual > SPARSE_ROW_STEPS * step_reference else step_reference


def _share_done(phases: PhaseArrays, last: IntArray) -> FloatArray:
    """Share of its last row that each rank has begun and measured, shape (n_ranks,).

    A rank that began a step is further than one that never did.
    """
    order = [name for name in PHASE_ORDER if name in phases.seconds]
    ranks = np.arange(phases.n_ranks)
    done = np.full(phases.n_ranks, 1.0)
    for position, name in enumerate(order, start=2):
        reached = np.isfinite(phases.seconds[name][ranks, last])
        done = np.where(reached, position, done)
    return done / (len(order) + 2)


def _last_sign(phases: PhaseArrays) -> float:
    """Time of the last sign of progress, Unix seconds: the median over ranks of their last row's end."""
    spent = np.zeros(phases.present.shape)
    for name in PHASE_ORDER[:-1]:
        if name in phases.seconds:
            array = phases.seconds[name]
            spent += np.where(np.isfinite(array), array, 0.0)
    whole = phases.phase("step_seconds")
    end = phases.start_time + np.where(np.isfinite(whole), whole, spent)
    last = np.where(np.isfinite(end), end, -np.inf).max(axis=1)
    # The median does not depend on a single rank's clock.
    return float(np.median(last[np.isfinite(last)]))
