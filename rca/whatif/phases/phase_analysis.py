"""Analyse a job of which only per-step phases are known: slowdown, decomposition, findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.errors import InvalidInput
from rca.high_segment import high_segment
from rca.whatif.attribution import Decomposition, Share, SlowdownFinding, WorkerSlowdowns
from rca.whatif.decompose import TOP_SHARE, share_of_loss
from rca.whatif.patterns import DOMINANT_SHARE, MIN_SLOWDOWN, named_ranks
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.whatif.phases.phase_scenarios import phases_under, usual_phase
from rca.whatif.result import WhatIf
from rca.whatif.scenario import Scenario
from rca.whatif.trace.trace import TraceMeta
from rca.window.job import Topology
from rca.window.times.hidden_waits import without_hidden_waits
from rca.window.times.own_work import SERIAL_PHASES, WORK_PHASES
from rca.window.times.phases import PhaseArrays
from rca.window.window import Window

WARM_UP_FACTOR = 3.0
MAX_WARM_UP = 5
UNMEASURED = "unmeasured"
TRANSFER_COMPONENT = "communication_transfer"
#: Least growth of the steps in an interval, as a share of the usual step.
MIN_LONGER = 0.03
LOST_BY_ALL = "only whole steps were measured: the loss is of longer steps than usual, on all ranks"
HIDDEN_WAITS = "waiting inside a phase, or outside all phases, was separated from work"


@dataclass(frozen=True)
class Components:
    """Own work by phase, as traced and ideal. Work outside all phases is a phase of its own.

    Attributes
    ----------
    used : ndarray of shape (n_steps,), bool
        Steps with a replayed and a measured time.
    seconds : dict of str to ndarray of shape (n_ranks, n_steps), seconds
        0 if the rank did not run the phase; NaN if it did not run the step.
    ideal : dict of str to float
        Mean over steps and stages, of the median rank of each stage; of two ranks the quicker one.
    ideal_transfer : float
        Median over steps.
    """

    replay: PhaseReplay
    topology: Topology
    used: BoolArray
    seconds: dict[str, FloatArray]
    ideal: dict[str, float]
    ideal_transfer: float

    @classmethod
    def of(cls, replay: PhaseReplay, topology: Topology, used: BoolArray) -> Components:
        own = replay.own
        left = own.copy()
        seconds: dict[str, FloatArray] = {}
        for name in WORK_PHASES:
            held = replay.seconds.get(name)
            if held is not None:
                part = np.where(np.isnan(own), np.nan, np.nan_to_num(held))
                seconds[name.removesuffix("_seconds")] = part
                left = left - part
        seconds[UNMEASURED] = left
        ideal = {name: usual_phase(part[:, used], topology) for name, part in seconds.items()}
        return cls(replay, topology, used, seconds, ideal, float(np.median(replay.transfer[used])))

    @property
    def ideal_own(self) -> float:
        return sum(self.ideal.values())

    @property
    def ideal_serial(self) -> float:
        return sum(self.ideal.get(name.removesuffix("_seconds"), 0.0) for name in SERIAL_PHASES)

    def evaluate(
        self, own: FloatArray, serial: FloatArray | None, transfer: FloatArray | float
    ) -> FloatArray:
        """Step times of the used steps; own and serial of shape (n_ranks, n_steps)."""
        broadcast = np.broadcast_to(np.asarray(transfer, dtype=np.float64), self.replay.transfer.shape)
        seconds: FloatArray = self.replay.evaluate(own, serial, broadcast)[self.used]
        return seconds

    def keeping(self, mask: FloatArray | BoolArray) -> FloatArray:
        """Step times with the masked ranks as traced, the others and the transfer ideal."""
        own = np.where(mask, self.replay.own, self._ideal_where_present)
        serial = self.replay.serial
        if serial is not None:
            serial = np.where(mask, serial, self.ideal_serial)
        return self.evaluate(own, serial, self.ideal_transfer)

    def without(self, mask: BoolArray) -> FloatArray:
        """Step times with the masked ranks ideal and all else as traced."""
        own = np.where(mask, self._ideal_where_present, self.replay.own)
        serial = self.replay.serial
        if serial is not None:
            serial = np.where(mask, self.ideal_serial, serial)
        return self.evaluate(own, serial, self.replay.transfer)

    def only_phase(self, name: str) -> FloatArray:
        """Step times with one phase as traced and the others ideal."""
        if name == TRANSFER_COMPONENT:
            return self.evaluate(self._ideal_where_present, self._serial_ideal, self.replay.transfer)
        own = self.ideal_own - self.ideal[name] + self.seconds[name]
        serial = self._serial_ideal
        if serial is not None and f"{name}_seconds" in SERIAL_PHASES:
            serial = serial - self.ideal[name] + np.nan_to_num(self.seconds[name])
        return self.evaluate(own, serial, self.ideal_transfer)

    @cached_property
    def _ideal_where_present(self) -> FloatArray:
        return np.where(np.isnan(self.replay.own), np.nan, self.ideal_own)

    @cached_property
    def _serial_ideal(self) -> FloatArray | None:
        return None if self.replay.serial is None else np.full_like(self.replay.own, self.ideal_serial)

    def each_data_rank(self) -> FloatArray:
        """Exact step times with one data rank as traced, for all data ranks: (n_data, n_steps)."""
        alone = self.replay.grid.data_rank_seconds(self.replay.own, self.replay.bubble, self.replay.serial)
        return np.asarray(np.fmax(alone[:, self.used] + self.ideal_transfer, self.all_ideal))

    def each_rank(self) -> FloatArray:
        """Exact step times with one rank as traced, for all ranks: (n_ranks, n_steps).

        The other stages of its pipeline are ideal and equal, so the pipeline has a closed form.
        """
        own = self.replay.own[:, self.used]
        n_stages, bubble = self.replay.grid.n_stages, self.replay.bubble
        if n_stages == 1:
            return np.asarray(np.fmax(own + self.ideal_transfer, self.all_ideal))
        serial = np.zeros_like(own) if self.replay.serial is None else self.replay.serial[:, self.used]
        work = np.fmax(own - serial, self.ideal_own - self.ideal_serial)
        others = (n_stages - 1) * (self.ideal_own - self.ideal_serial)
        pipelines = work + bubble * others + np.fmax(serial, self.ideal_serial) + self.ideal_transfer
        return np.asarray(np.fmax(np.where(np.isnan(own), -np.inf, pipelines), self.all_ideal))

    @cached_property
    def all_ideal(self) -> FloatArray:
        return self.keeping(np.zeros(self.replay.own.shape, dtype=bool))


def phase_what_if(window: Window, *, seed: int = 0) -> WhatIf:
    """Replay the phases of a window. In the result, phases are operation types and ranks are workers.

    Raises
    ------
    InvalidInput
        If no step of the window was finished.
    """
    return _analysed(window, *_replayed(window), seed)


def analysed_phase_scenarios(
    window: Window, scenarios: Sequence[Scenario], *, seed: int = 0
) -> tuple[WhatIf, FloatArray]:
    """`phase_what_if` and, on its steps, the step times under described scenarios."""
    phases, replay = _replayed(window)
    result = _analysed(window, phases, replay, seed)
    seconds = _scenario_seconds(window, phases, replay, scenarios)
    return result, seconds[:, np.isin(phases.steps, result.steps)]


def _replayed(window: Window) -> tuple[PhaseArrays, PhaseReplay]:
    """The phases of a window without hidden waits, as in a diagnosis, and their replay."""
    given = PhaseArrays.from_window(window)
    phases = without_hidden_waits(given, window.job.topology)
    replay = PhaseReplay.from_arrays(phases, window.job)
    if phases is not given:
        replay = replace(replay, notes=(*replay.notes, HIDDEN_WAITS))
    return phases, replay


def _analysed(window: Window, phases: PhaseArrays, replay: PhaseReplay, seed: int) -> WhatIf:
    topology = window.job.topology
    used = np.isfinite(replay.replayed) & np.isfinite(replay.measured)
    if not used.any():
        raise InvalidInput("no step of the window was finished: nothing to replay")
    warm_up = _leading_outliers(replay.measured)
    used[:warm_up] = False
    if not replay.informative:
        return _uninformative(window, phases, replay, used, seed)
    parts = Components.of(replay, topology, used)
    no_delay, ideal = replay.replayed[used], parts.all_ideal
    by_rank = parts.each_rank()
    names = [*parts.seconds, TRANSFER_COMPONENT]
    by_type = Decomposition(tuple(names), np.stack([parts.only_phase(name) for name in names]))
    stages = range(topology.n_stages)
    by_stage = Decomposition(
        tuple(stages), np.stack([parts.keeping((topology.stage == s)[:, None]) for s in stages])
    )
    by_data = Decomposition(tuple(range(replay.grid.n_data)), parts.each_data_rank())
    exact = by_rank.mean(axis=1) / ideal.mean()
    s_data, s_stage = (part.seconds.mean(axis=1) / ideal.mean() for part in (by_data, by_stage))
    approximate = np.minimum(s_data[topology.data_rank], s_stage[topology.stage])

    def share(published: BoolArray, chosen: BoolArray) -> Share:
        without = parts.without(chosen[:, None])
        exact_share = by_published = share_of_loss(no_delay, ideal, without)
        if not np.array_equal(published, chosen):
            by_published = share_of_loss(no_delay, ideal, parts.without(published[:, None]))
        return Share(by_published, exact_share, tuple(np.flatnonzero(chosen).tolist()), without)

    last = topology.stage == topology.n_stages - 1
    m_w, m_s = share(_top(approximate), _top(exact)), share(last, last)
    return WhatIf(
        source="phases",
        job=_job(window),
        steps=phases.steps[used],
        measured=replay.measured[used],
        no_delay=no_delay,
        ideal=ideal,
        by_type=by_type,
        by_data_rank=by_data,
        by_stage=by_stage,
        workers=_workers(topology, phases.present, by_rank, approximate),
        m_w=m_w,
        m_s=m_s,
        findings=_findings(no_delay, ideal, m_w, m_s, topology, exact),
        world_size=window.job.world_size,
        seed=seed,
        notes=(*replay.notes, *([f"{warm_up} warm-up step(s) left out"] if warm_up else [])),
    )


def _leading_outliers(measured: FloatArray) -> int:
    """Number of slow steps at the start of the window: compilation, caches, first connections."""
    slow = ~(measured <= WARM_UP_FACTOR * np.nanmedian(measured))
    leading = int(np.argmin(slow)) if not slow.all() else 0
    return leading if leading <= MAX_WARM_UP else 0


def _uninformative(
    window: Window, phases: PhaseArrays, replay: PhaseReplay, used: BoolArray, seed: int
) -> WhatIf:
    """The result if only whole steps were measured: longer steps in an interval are lost on all ranks."""
    measured = replay.measured[used]
    longer = high_segment(measured, min_contrast=MIN_LONGER * float(np.median(measured)))
    inside = longer.mask(measured.size)
    ideal = measured
    notes = replay.notes
    if not longer.whole:
        usual = float(np.median(measured[~inside]))
        ideal = np.where(inside, np.minimum(measured, usual), measured)
        notes = (*notes, LOST_BY_ALL)
    topology = window.job.topology

    def alike(labels: Sequence[int | str]) -> Decomposition:
        return Decomposition(tuple(labels), np.tile(ideal, (len(labels), 1)))

    unknown = Share(None, None, ())
    return WhatIf(
        source="phases",
        job=_job(window),
        steps=phases.steps[used],
        measured=measured,
        no_delay=measured,
        ideal=ideal,
        by_type=alike(()),
        by_data_rank=alike(range(replay.grid.n_data)),
        by_stage=alike(range(topology.n_stages)),
        workers=_workers(
            topology, phases.present, np.tile(ideal, (topology.n_ranks, 1)), np.ones(topology.n_ranks)
        ),
        m_w=unknown,
        m_s=unknown,
        findings=(),
        world_size=window.job.world_size,
        seed=seed,
        notes=notes,
    )


def _workers(
    topology: Topology, present: BoolArray, seconds: FloatArray, approximate: FloatArray
) -> WorkerSlowdowns:
    """The slowdowns of the ranks that have steps: of the others nothing is known."""
    ranks = np.flatnonzero(present.any(axis=1))
    return WorkerSlowdowns(
        ranks, topology.data_rank[ranks], topology.stage[ranks], seconds[ranks], approximate[ranks]
    )


def _job(window: Window) -> dict[str, Any]:
    return TraceMeta.of_job(window.job).model_dump(exclude_none=True)


def _top(scores: FloatArray) -> BoolArray:
    count = int(np.ceil(TOP_SHARE * scores.size))
    chosen = np.zeros(scores.size, dtype=bool)
    chosen[np.argsort(-scores, kind="stable")[:count]] = True
    return chosen


def _findings(
    no_delay: FloatArray, ideal: FloatArray, m_w: Share, m_s: Share, topology: Topology, exact: FloatArray
) -> tuple[SlowdownFinding, ...]:
    lost = float(no_delay.mean() - ideal.mean())
    if no_delay.mean() < MIN_SLOWDOWN * ideal.mean():
        return ()
    found = []
    if m_w.exact is not None and m_w.exact >= DOMINANT_SHARE and topology.n_ranks > 1:
        evidence = {"m_w": m_w.exact, "hottest_slowdown": float(exact.max())}
        text = f"{named_ranks(m_w.ranks)} alone cost {m_w.exact:.0%} of the slowdown"
        found.append(SlowdownFinding("worker", m_w.ranks, m_w.exact, m_w.exact * lost, evidence, text))
    if m_s.exact is not None and m_s.exact >= DOMINANT_SHARE and topology.n_stages > 1:
        text = f"the last stage alone costs {m_s.exact:.0%} of the slowdown: move layers off it"
        found.append(
            SlowdownFinding("stage", m_s.ranks, m_s.exact, m_s.exact * lost, {"m_s": m_s.exact}, text)
        )
    return tuple(found)


def phase_scenario_seconds(window: Window, scenarios: Sequence[Scenario]) -> FloatArray:
    """Step times of a window under scenarios; NaN for steps that no rank finished.

    Returns
    -------
    ndarray of shape (n_scenarios, n_steps), seconds
    """
    return _scenario_seconds(window, *_replayed(window), scenarios)


def _scenario_seconds(
    window: Window, phases: PhaseArrays, replay: PhaseReplay, scenarios: Sequence[Scenario]
) -> FloatArray:
    seconds = np.empty((len(scenarios), phases.steps.size))
    for k, scenario in enumerate(scenarios):
        replaced = phases_under(replay, phases.steps, window.job.topology, scenario)
        seconds[k] = replay.step_seconds(replaced)
    return seconds
