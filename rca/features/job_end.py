"""How the rows end: the traces a crash or a hang leaves in the `steps` table and in the events."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.end_events import (
    End,
    Event,
    around,
    complaints,
    ended_normally,
    events_told,
    named_by_events,
    nobody_complained,
    was_noticed,
    who_died,
    whose_link_went_down,
)
from rca.features.end_origin import where_it_began
from rca.features.post_stop_signals import Aftermath, Lately
from rca.robust import nan_median
from rca.telemetry.phases import PhaseArrays
from rca.telemetry.window import Window

#: Order in which a step is worked through; a rank that stops leaves the later ones unmeasured.
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
#: A job whose first row is one of these begins in the window: what is before it may be its start.
FIRST_STEPS = 1
#: Margins before and after the rows that differ by less, relative to the one before, were cut alike.
SAME_MARGIN = 0.2
#: A margin is a scrape or two: at most so many seconds (or long steps), and this share of the window.
MARGIN_SECONDS, MARGIN_STEPS, MARGIN_SHARE = 150.0, 5, 0.25
#: Events before the first row that say that the job was starting.
STARTS = frozenset({"restart", "process_exit"})
#: Rows further apart than so many of their steps stand for several steps each.
SPARSE = 1.5


@dataclass(frozen=True)
class Endings:
    """Per rank, how far it got; for the job, how long it has been silent.

    Attributes
    ----------
    progress : ndarray of shape (n_ranks,), steps
        Steps finished relative to the rank that got furthest, counting measured phases of an unfinished
        step as fractions; 0 for the furthest, negative for the others.
    behind : ndarray of shape (n_ranks,), steps
        `progress` relative to the median rank; negative means this rank stopped before the others.
    unfinished : ndarray of shape (n_ranks,), bool
        The rank's last row was begun and never finished.
    fatal, missed : ndarray of shape (n_ranks,), bool
        An event of that sort names the rank (or only its node).
    died : ndarray of shape (n_ranks,), bool
        The rank's process failed or was killed when progress ended, and before anybody was missed.
    began : ndarray of shape (n_ranks,), bool
        By the events the end began with this rank, alone or with others of its node.
    silence : float, steps
        From the last sign of progress to the end of the window, in usual steps (or rows, where not every step
        has one); 0 once everybody exited normally. `heard` takes off what is no sign of a stop.
    fatal_delay : float, steps
        From the last sign of progress to the first fatal event; NaN without one. Who dies stops the job
        at once; who hangs is killed by a watchdog much later.
    margin : float, steps
        How much of the silence may be due to how the window was cut.
    noticed : bool
        Since the last sign of progress an event named a rank that ended badly or was missed.
    link_down : ndarray of shape (n_ranks,), bool
        An event says that a port of the rank's node was down.
    quiet : bool
        Events are collected, and around and since the last sign of progress none tells of trouble.
    complaints : int
        Events around or since the last sign of progress that tell of trouble, whomever they name.
    left : bool
        All ranks did as many steps, gave their devices back at once, and nobody complained.
    stayed : bool
        Most ranks gave their devices back at once, and some are known not to have.
    used : ndarray of shape (n_ranks,), ratio, or None
        CPU time that every rank's processes took lately, relative to before the end; see `Lately`.
    """

    progress: FloatArray
    behind: FloatArray
    unfinished: BoolArray
    fatal: BoolArray
    missed: BoolArray
    died: BoolArray
    began: BoolArray
    link_down: BoolArray
    silence: float
    fatal_delay: float
    margin: float = 0.0
    noticed: bool = False
    quiet: bool = False
    complaints: int = 0
    left: bool = False
    stayed: bool = False
    used: FloatArray | None = None

    @classmethod
    def from_window(cls, window: Window, phases: PhaseArrays, step_reference: float) -> Endings:
        """Read the endings off a window whose usual step takes `step_reference` seconds."""
        last = phases.last_column
        seen = phases.present.any(axis=1)
        ranks = np.arange(phases.n_ranks)
        finished = np.isfinite(phases.phase("step_seconds")[ranks, last])
        done = _phases_done(phases, last)
        reached = np.where(finished, last + 1.0, last + done)
        progress = np.where(seen, reached - reached[seen].max(), np.nan)
        silence = fatal_delay = margin = np.nan
        noticed = quiet = False
        complained = 0
        died = began = np.zeros(phases.n_ranks, dtype=bool)
        told = events_told(window)
        fatal, missed, first_fatal = named_by_events(told, window.job.topology)
        if np.isfinite(step_reference):
            sign = _last_sign(phases)
            silence, margin = _silence(window, phases, told, sign, step_reference)
            noticed = was_noticed(told, sign - step_reference)
            quiet = nobody_complained(told, sign - around(step_reference))
            complained = complaints(told, sign - around(step_reference))
            if not noticed and ended_normally(told, window.job.topology, sign, step_reference):
                silence = 0.0
            fatal_delay = (first_fatal - sign) / step_reference
            begun = np.where(np.isfinite(phases.start_time), phases.start_time, -np.inf).max(axis=1)
            end = End(window.job.topology, sign, begun - step_reference, step_reference)
            died, began = who_died(told, end), where_it_began(told, end)
        return cls(
            progress=progress,
            behind=progress - nan_median(progress[:, None])[0],
            unfinished=seen & ~finished,
            fatal=fatal,
            missed=missed,
            died=died,
            began=began,
            link_down=whose_link_went_down(told, window.job.topology),
            silence=silence,
            fatal_delay=fatal_delay,
            margin=margin,
            noticed=noticed,
            quiet=quiet,
            complaints=complained,
        )

    def after(self, aftermath: Aftermath) -> Endings:
        """The same endings; without a silence if all ranks left at once and nobody complained.

        So jobs end that are done, and jobs that somebody ended; one that stopped leaves somebody waiting.
        """
        alike = not self.unfinished.any() and bool((self.behind == 0).all())
        if not self.quiet or not alike or not aftermath.everybody_left:
            return replace(self, stayed=aftermath.some_stayed)
        return replace(self, silence=0.0, left=True)

    def heard(self, lately: Lately) -> Endings:
        """The same endings with the silence that speaks for a stop, after what machines did lately.

        Rows are late if every machine works on (a begun step has a row that is not), and the window's margin
        is no silence unless something stands still; whoever noticed a death or a missing rank settles it.
        """
        silence = self.silence
        if not self.noticed and lately.works_on and not self.unfinished.any():
            silence = 0.0
        elif not self.noticed and self.margin > 0 and not lately.stands_still:
            silence = max(0.0, silence - self.margin)
        return replace(self, silence=silence, used=lately.used)


def _silence(
    window: Window, phases: PhaseArrays, told: list[Event], sign: float, step: float
) -> tuple[float, float]:
    """Steps from the last sign of progress to the window's end, and how many of them may be its margin.

    Who cuts samples wider than rows does so at both ends, so the time before the first row tells: a scrape or
    two, not most of the window. A job that was starting then, by its step numbers or its events, shows
    nothing by it, unless as much time has passed behind the last row.
    """
    after, interval = window.job.end - sign, _interval(phases, step)
    began = np.where(np.isfinite(phases.start_time), phases.start_time, np.inf).min(axis=1)
    first = float(np.median(began[np.isfinite(began)]))
    before = max(0.0, first - window.job.start)
    alike = abs(after - before) <= SAME_MARGIN * before
    scrapes = max(MARGIN_SECONDS, MARGIN_STEPS * interval)
    short = before <= min(scrapes, MARGIN_SHARE * (window.job.end - window.job.start))
    starting = int(phases.steps[0]) <= FIRST_STEPS or any(
        event.kind in STARTS and event.time < first for event in told
    )
    margin = before if short and (alike or not starting) else 0.0
    return max(0.0, after / interval - 1.0), margin / interval


def _interval(phases: PhaseArrays, step_reference: float) -> float:
    """Seconds between a rank's rows: a usual step, or as many as one row stands for."""
    apart = np.diff(phases.start_time, axis=1)
    known = apart[np.isfinite(apart)]
    usual = float(np.median(known)) if known.size else 0.0
    return usual if usual > SPARSE * step_reference else step_reference


def _phases_done(phases: PhaseArrays, last: IntArray) -> FloatArray:
    """Fraction of the step each rank worked through in its last row, shape (n_ranks,)."""
    order = [name for name in PHASE_ORDER if name in phases.seconds]
    ranks = np.arange(phases.n_ranks)
    done = np.zeros(phases.n_ranks)
    for position, name in enumerate(order, start=1):
        reached = np.isfinite(phases.seconds[name][ranks, last])
        done = np.where(reached, position / (len(order) + 1), done)
    return done


def _last_sign(phases: PhaseArrays) -> float:
    spent = np.zeros(phases.present.shape)
    for name in PHASE_ORDER[:-1]:
        if name in phases.seconds:
            array = phases.seconds[name]
            spent += np.where(np.isfinite(array), array, 0.0)
    whole = phases.phase("step_seconds")
    end = phases.start_time + np.where(np.isfinite(whole), whole, spent)
    last = np.where(np.isfinite(end), end, -np.inf).max(axis=1)
    # The median over ranks is immune to one rank's clock running ahead.
    return float(np.median(last[np.isfinite(last)]))
