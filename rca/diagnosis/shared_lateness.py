"""Lateness that all ranks share: in turns, in the transfer, in the pace, or where no timer runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.diagnosis.lateness import (
    MIN_LATE_STEPS,
    Kind,
    Lateness,
    late_in_transfer,
    late_ranks,
    late_stages,
)
from rca.diagnosis.timeline import Timeline
from rca.features.device_load import DEVICE_PHASES
from rca.features.input_load import LOAD_COUNTS
from rca.features.work import LostTime
from rca.high_segment import high_segment
from rca.robust import nan_median, robust_spread, zero_if_nan

#: Ranks are late in turns unless one of them is the latest in this share of the steps.
MOSTLY_ONE = 0.6
#: A rank is late in a step from this share of the usual step, and from these spreads on.
LATE_IN_TURN, LATE_IN_TURN_SPREADS = 0.03, 2.0
#: Least change of all ranks, as a share of the usual step: of the transfer or own work, and of whole steps.
MIN_CHANGE, MIN_CHANGE_OF_STEPS = 0.02, 0.03
#: Most intervals of one kind.
MAX_INTERVALS = 3
#: Whole steps count if they cost this many times what the other latenesses explain.
UNEXPLAINED = 1.5
#: A step is single and long from this many usual steps on; single steps are at most this share of all.
LONG_STEP, MAX_LONG_STEPS = 1.4, 0.25
#: Shares of the step that no healthy job spends in a phase; 0.3 elsewhere.
EXTREME_SHARE = {"gc": 0.05, "transfer": 0.6}
USUAL_EXTREME = 0.3
#: Share of a change that more input has to explain.
BY_INPUT = 0.6
#: Least z of a change, in standard errors.
MIN_CHANGE_Z = 6.0


def latenesses(line: Timeline) -> list[Lateness]:
    """Every lateness of a job.

    Returns
    -------
    list of Lateness
        Empty without step times, and for fewer than two steps.
    """
    if not np.isfinite(line.usual) or line.n_steps < 2:
        return []
    found: list[Lateness] = []
    if line.localises:
        found += late_ranks(line)
        found += late_stages(line, found)
        found += late_in_transfer(line)
        found += _in_turns(line, found)
    found += _changes(line)
    found += _slower_pace(line, found)
    found += _long_steps(line, found)
    found += _lost(line, "between", line.work.pauses)
    found += _lost(line, "untimed", line.work.untimed)
    found += _extreme_shares(line, found)
    return found


def _in_turns(line: Timeline, found: Sequence[Lateness]) -> list[Lateness]:
    """Another rank late in each step: what the job saves if no rank were late, less what is explained."""
    own, excess = line.replay.own, zero_if_nan(line.comparison.excess).copy()
    for each in found:
        excess[np.ix_(np.array(each.ranks), np.flatnonzero(each.steps))] = 0.0
    latest = np.where(excess.max(axis=0) > 0, excess.argmax(axis=0), -1)
    turns = np.bincount(latest[latest >= 0], minlength=excess.shape[0])
    if excess.shape[0] > 2 and turns.max() > MOSTLY_ONE * max(int(turns.sum()), 1):
        return []
    late = excess > max(LATE_IN_TURN_SPREADS * line.noise, LATE_IN_TURN * line.usual)
    if late.sum() < MIN_LATE_STEPS:
        return []
    gain = line.saved(own, np.maximum(own - np.maximum(excess, 0.0), 0.0))
    phases = {
        name.removesuffix("_seconds"): max(float(zero_if_nan(values)[late].mean()), 0.0)
        for name, values in line.comparison.phase_excess.items()
    }
    whole = float(excess[late].mean())
    rest = whole - sum(phases.values())
    if rest > 0.15 * whole:
        phases["untimed"] = rest
    z = float(np.quantile(excess.max(axis=0), 0.8) / max(line.noise, 1e-12))
    return [Lateness("rotating", line.everybody, line.everywhere(), float(gain.mean()), z, phases)]


def _changes(line: Timeline) -> list[Lateness]:
    """A slower transfer, or more own work, of all ranks."""
    found: list[Lateness] = []
    own = nan_median(line.work.own) if line.localises else np.full(line.n_steps, np.nan)
    rows: tuple[tuple[Kind, FloatArray], ...] = (("transfer", nan_median(line.work.transfer)), ("job", own))
    for kind, series in rows:
        for steps, contrast, z in _intervals(line, series, MIN_CHANGE):
            phases, more = {"transfer": contrast}, False
            if kind == "job":
                grown = {
                    name.removesuffix("_seconds"): max(_difference(nan_median(values), steps), 0.0)
                    for name, values in line.work.phases.items()
                }
                phases = grown | {"untimed": max(contrast - sum(grown.values()), 0.0)}
                more = _has_more_input(line, steps, contrast)
            found.append(_over(line, kind, steps, contrast, z, phases, more_input=more))
    return found


def _slower_pace(line: Timeline, found: Sequence[Lateness]) -> list[Lateness]:
    """Longer steps of the whole job that no other lateness explains."""
    left = line.work.job_step.copy()
    for each in found:
        if line.localises and each.kind in {"transfer", "job"}:
            left[each.steps] -= each.seconds * line.n_judged / max(int(each.steps.sum()), 1)
    paces = []
    for steps, contrast, z in _intervals(line, left, MIN_CHANGE_OF_STEPS):
        more = _has_more_input(line, steps, contrast)
        pace = _over(line, "pace", steps, contrast, z, {}, more_input=more)
        others = sum(each.seconds for each in found if (each.steps & steps).any())
        if pace.seconds > UNEXPLAINED * others:
            paces.append(pace)
    return paces


def _intervals(line: Timeline, series: FloatArray, least: float) -> list[tuple[BoolArray, float, float]]:
    """The high intervals of a series, each found without those before it; from `least` usual steps on."""
    found: list[tuple[BoolArray, float, float]] = []
    left = series
    while len(found) < MAX_INTERVALS:
        change = _change(line, left)
        if change is None or change[1] <= least * line.usual:
            break
        found.append(change)
        if line.since is not None:
            break
        left = np.where(change[0], np.nan, left)
    return found


def _change(line: Timeline, series: FloatArray) -> tuple[BoolArray, float, float] | None:
    """A high interval of a series, or all steps after an earlier window: steps, contrast (s), and z."""
    if not np.isfinite(series).any():
        return None
    if line.since is None:
        segment = high_segment(series, min_z=MIN_CHANGE_Z, min_contrast=MIN_CHANGE * line.usual)
        inside = segment.mask(line.n_steps) & np.isfinite(series)
        return None if segment.whole else (inside, segment.contrast, segment.z)
    steps = np.arange(line.n_steps) >= line.since
    before = series[~steps]
    if not np.isfinite(before).any() or not np.isfinite(series[steps]).any():
        return None
    usual = float(np.nanmedian(before))
    contrast = float(np.nanmedian(series[steps])) - usual
    spread = robust_spread(before - usual) + 1e-9
    return steps, contrast, contrast / spread * float(np.sqrt(min(steps.sum(), (~steps).sum())))


def _difference(series: FloatArray, steps: BoolArray) -> float:
    """Mean in some steps above the mean of the others; 0 where it is unknown."""
    inside, outside = series[steps], series[~steps]
    if not np.isfinite(inside).any() or not np.isfinite(outside).any():
        return 0.0
    return float(np.nanmean(inside) - np.nanmean(outside))


def _over(
    line: Timeline,
    kind: Kind,
    steps: BoolArray,
    contrast: float,
    z: float,
    phases: dict[str, float],
    *,
    more_input: bool,
) -> Lateness:
    """A change of all ranks, priced over the judged steps."""
    seconds = contrast * int(steps.sum()) / max(line.n_judged, 1)
    counted = any(name in line.work.load for name in LOAD_COUNTS)
    unknown = kind != "transfer" and not counted and line.since is None
    may_be_work = unknown and _is_of_devices(phases)
    return Lateness(
        kind,
        line.everybody,
        steps,
        seconds,
        z,
        phases,
        more_input=more_input,
        may_be_work=may_be_work,
    )


def _is_of_devices(phases: Mapping[str, float]) -> bool:
    """Whether most of a change is in the phases that more input lengthens; without timers it may be."""
    longer = sum(phases.get(name.removesuffix("_seconds"), 0.0) for name in DEVICE_PHASES)
    return 2 * longer >= sum(phases.values())


def _has_more_input(line: Timeline, steps: BoolArray, contrast: float) -> bool:
    """Whether the longer steps have as much more input."""
    if not steps.any() or steps.all():
        return False
    for name in LOAD_COUNTS:
        if name not in line.work.load:
            continue
        load = nan_median(line.work.load[name])
        inside, outside = np.nanmedian(load[steps]), np.nanmedian(load[~steps])
        if outside > 0 and inside / outside - 1.0 > BY_INPUT * contrast / max(line.usual, 1e-12):
            return True
    return False


def _long_steps(line: Timeline, found: Sequence[Lateness]) -> list[Lateness]:
    """Single long steps of all ranks, where nothing else explains them."""
    long = line.work.job_step > LONG_STEP * line.usual
    if not 2 <= long.sum() < MAX_LONG_STEPS * line.n_steps:
        return []
    cost = float(np.where(long, zero_if_nan(line.work.job_step) - line.usual, 0.0).sum()) / line.n_steps
    others = sum(each.seconds for each in found if not each.of_all or each.kind == "rotating")
    changed = any(each.kind in {"transfer", "job", "pace"} for each in found)
    if changed or others >= 0.5 * cost or cost <= MIN_CHANGE * line.usual:
        return []
    apart = np.diff(np.flatnonzero(long))
    planned = apart.size >= 2 and int(np.ptp(apart)) <= 1
    z = 100 * line.relative(cost)
    return [Lateness("spikes", line.everybody, long, cost, z, single=True, planned=planned)]


def _lost(line: Timeline, kind: Kind, lost: LostTime) -> list[Lateness]:
    """Time between steps, or outside every timer."""
    if not lost.seconds > MIN_CHANGE * line.usual:
        return []
    between = kind == "between"
    series = np.nan_to_num(line.work.between_steps if between else nan_median(line.work.outside_phases))
    steps = np.zeros(line.n_steps, dtype=bool)
    above = np.flatnonzero(series > 1.5 * np.median(series) + MIN_CHANGE * line.usual)
    steps[np.minimum(above + between, line.n_steps - 1)] = True
    z = 100 * line.relative(lost.seconds)
    phases = {"untimed": 1.0}
    return [Lateness(kind, line.everybody, steps, lost.seconds, z, phases, single=True, planned=lost.planned)]


def _extreme_shares(line: Timeline, found: Sequence[Lateness]) -> list[Lateness]:
    """Phases that take a share of the step that no healthy job spends in them."""
    rows = []
    for phase in ("data_loading", "checkpoint", "gc", "host_to_device", "transfer"):
        values = line.work.transfer if phase == "transfer" else line.work.phases.get(f"{phase}_seconds")
        if values is None or not np.isfinite(values).any():
            continue
        # The bubbles of a pipeline count as transfer.
        if phase == "transfer" and (
            line.topology.n_stages > 1 or any(each.kind == "transfer" for each in found)
        ):
            continue
        series = nan_median(values)
        share = float(np.nansum(series) / max(float(np.nansum(line.work.job_step)), 1e-12))
        seconds, z = float(np.nanmean(series)), 100 * share
        if share > EXTREME_SHARE.get(phase, USUAL_EXTREME):
            rows.append(Lateness("share", line.everybody, line.everywhere(), seconds, z, {phase: 1.0}))
    return rows
