"""Excess time of a suspected component over its reference, by phase: what a counterfactual removes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.causal.responsibility import UNMEASURED
from rca.classify.classifier import Suspect, named_ranks
from rca.features import FeatureSet
from rca.robust import group_members, nan_mean, nan_median, nan_quantile
from rca.window.times.own_work import SERIAL_PHASES

#: A component's transfer above that of all ranks by this share of the step is a lag of its own, not noise.
MIN_LAG = 0.02
#: Quantile of a job's own steps that is its usual step where there are no peers.
USUAL_QUANTILE = 0.35
_SERIAL = frozenset(name.removesuffix("_seconds") for name in SERIAL_PHASES)


@dataclass(frozen=True)
class Excess:
    """A component's time above its reference; arrays of shape (n_ranks_of_component, n_steps), seconds.

    Attributes
    ----------
    parts : dict of str to ndarray
        The total split over the phases; the rest is `UNMEASURED`. They add up to `total`.
    lag : ndarray
        Transfer beyond the group's; 0 where it is not clear. The rank begins its next step that much later
        than the others, so it delays the job like own work.
    theirs : ndarray of shape (n_ranks_of_component,), bool
        Ranks with an excess over their peers at the same step, so that no other suspect shares in it.
    """

    ranks: tuple[int, ...]
    total: FloatArray
    parts: dict[str, FloatArray]
    lag: FloatArray
    theirs: BoolArray

    def serial(self) -> FloatArray:
        """Part of the total in phases that a pipeline runs once per step."""
        serial = [values for name, values in self.parts.items() if name in _SERIAL]
        return sum(serial, np.zeros(self.total.shape))


def excess_of(suspect: Suspect, features: FeatureSet) -> Excess:
    """Time above the reference that fits the suspect: its peers, the other stages, or the job's own usual."""
    rows = list(suspect.component.ranks)
    work, comparison = features.work, features.comparison
    own = work.own[rows]
    reference = comparison.reference[rows]
    phases = {name: excess[rows] for name, excess in comparison.phase_excess.items()}
    if _balances(suspect):
        # Balancing moves work and removes none: every rank would get the mean, not the minimum.
        reference = _balanced(work.own, features)[rows]
        phases = {
            name: (seconds - _balanced(seconds, features))[rows] for name, seconds in work.phases.items()
        }
    elif suspect.component.scope == "stage":
        reference = np.fmin(reference, _other_stages(work.own, rows, features))
        phases = {
            name: seconds[rows] - _other_stages(seconds, rows, features)
            for name, seconds in work.phases.items()
        }
    elif suspect.component.scope == "job":
        reference = np.fmin(reference, _usual(own))
        phases = {name: seconds[rows] - _usual(seconds[rows]) for name, seconds in work.phases.items()}
    elif (alone := _without_peers(rows, features)).any():
        # Most of its stage is affected as well, so only its own past can be its reference.
        reference = np.where(alone, np.fmin(reference, _quiet(own, features)), reference)
        phases = {
            name: np.where(alone, seconds[rows] - _quiet(seconds[rows], features), phases[name])
            for name, seconds in work.phases.items()
        }
    total = _positive(own - reference)
    del own, reference
    # One at a time: the arrays of a whole job's phases are most of what a diagnosis holds.
    positive = {name.removesuffix("_seconds"): _positive(phases.pop(name)) for name in list(phases)}
    parts, lag = split(total, positive), _lag(rows, features)
    return Excess(suspect.component.ranks, total, parts, lag, _above_peers(suspect, features))


def excesses_of(suspects: Sequence[Suspect], features: FeatureSet) -> list[Excess]:
    """Each suspect's time above its reference, without the excess that belongs to another suspect alone.

    A hot rank of a job with slow data loading is above its past by both. A late rank is above the other
    stages by more than its stage. So the narrowest suspect comes first. Its excess over its peers is removed
    from its work before a wider suspect is compared. A suspect without peers is compared with its past, which
    may include the wider suspect's effect. That stays in both, and `ideal_work` removes the larger one.
    """
    found: dict[int, Excess] = {}
    left, lags = features, np.zeros(features.topology.n_ranks, dtype=bool)
    narrowest_first = sorted(range(len(suspects)), key=lambda each: len(suspects[each].component.ranks))
    for place in narrowest_first:
        suspect, rows = suspects[place], list(suspects[place].component.ranks)
        excess = excess_of(suspect, left)
        excess = replace(excess, lag=np.where(lags[rows, None], 0.0, excess.lag))
        lags[rows] |= excess.lag.any(axis=1)
        found[place] = excess
        if len(found) < len(suspects):
            left = _without(excess, left)
    return [found[place] for place in range(len(suspects))]


def _above_peers(suspect: Suspect, features: FeatureSet) -> BoolArray:
    """The suspect's ranks that are compared with peers and suspected for their own work; bool per rank."""
    rows, stage = list(suspect.component.ranks), features.topology.stage
    if suspect.by_link or suspect.component.scope == "job":
        return np.zeros(len(rows), dtype=bool)
    alone: BoolArray = np.bincount(stage)[stage[rows]] == 1
    if suspect.component.scope != "stage":
        alone |= _without_peers(rows, features)[:, 0]
    return ~alone


def _without(excess: Excess, features: FeatureSet) -> FeatureSet:
    """The features with the excess that belongs to this suspect alone removed."""
    work, rows = features.work, np.array(excess.ranks)[excess.theirs]
    if not rows.size:
        return features
    own, phases = work.own.copy(), dict(work.phases)
    own[rows] -= excess.total[excess.theirs]
    for name in phases.keys() & {f"{part}_seconds" for part in excess.parts}:
        phases[name] = phases[name].copy()
        phases[name][rows] -= excess.parts[name.removesuffix("_seconds")][excess.theirs]
    last = [_positive(each - features.comparison.reference).max(axis=0) for each in (work.own, own)]
    left = replace(work, step=work.step - (last[0] - last[1]), own=own, phases=phases)
    return replace(features, work=left)


def split(total: FloatArray, phases: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Split the total over the phases in proportion to their own excess; the rest is unmeasured.

    Parameters
    ----------
    total : ndarray of shape (n_ranks, n_steps), seconds
    phases : dict of str to ndarray of shape (n_ranks, n_steps), seconds
        Emptied: its arrays are taken.

    Notes
    -----
    A pause of the garbage collector lies inside the phase it interrupts and counts there as well. So it comes
    first, and the phases share the rest.
    """
    parts = {}
    left = total
    if "gc" in phases:
        parts["gc"] = np.minimum(phases["gc"], total)
        left = total - parts["gc"]
        del phases["gc"]
    covered = sum(phases.values(), np.zeros(total.shape))
    scale = np.where(covered > 0, np.minimum(left / np.maximum(covered, 1e-12), 1.0), 0.0)
    parts |= {name: phases.pop(name) * scale for name in list(phases)}
    parts[UNMEASURED] = np.maximum(left - covered * scale, 0.0)
    return parts


def ideal_work(
    own: FloatArray, serial: FloatArray | None, features: FeatureSet, excesses: list[Excess]
) -> tuple[FloatArray, FloatArray | None]:
    """Own work, and its serial part, without any excess over the reference.

    Ranks below the reference keep their time.

    Parameters
    ----------
    own : ndarray of shape (n_ranks, n_steps), seconds
    serial : ndarray of shape (n_ranks, n_steps), seconds, optional
        Only in a pipeline.
    """
    ideal = np.where(np.isfinite(own), np.fmin(own, features.comparison.reference), np.nan)
    named = sorted({rank for excess in excesses for rank in excess.ranks})
    removed, taken = _together(excesses, own.shape)
    ideal[named] = np.where(np.isfinite(own[named]), np.maximum(own[named] - removed[named], 0.0), np.nan)
    if serial is None:
        return ideal, None
    above = features.comparison.phase_excess
    peers = sum((_positive(above[name]) for name in SERIAL_PHASES if name in above), np.zeros(own.shape))
    peers[named] = taken[named]
    return ideal, np.maximum(serial - np.minimum(peers, _positive(own - ideal)), 0.0)


def _together(excesses: Sequence[Excess], shape: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """The excess of all suspects per rank, and its serial part.

    Excess that belongs to one suspect alone adds up with the others'. Otherwise a part of the job and the job
    itself may share it: in the same phase the larger of the two counts.
    """
    removed, serial = np.zeros(shape), np.zeros(shape)
    shared: dict[str, FloatArray] = {}
    for excess in sorted(excesses, key=lambda each: len(each.ranks)):
        rows, theirs = np.array(excess.ranks), excess.theirs
        removed[rows[theirs]] += excess.total[theirs]
        serial[rows[theirs]] += excess.serial()[theirs]
        for name in shared.keys() & excess.parts.keys():
            left = shared[name][rows[theirs]] - excess.parts[name][theirs]
            shared[name][rows[theirs]] = np.maximum(left, 0.0)
        if theirs.all():
            continue
        for name, seconds in excess.parts.items():
            most = shared.setdefault(name, np.zeros(shape))
            most[rows[~theirs]] = np.maximum(most[rows[~theirs]], seconds[~theirs])
    removed += sum(shared.values(), np.zeros(shape))
    serial += sum((seconds for name, seconds in shared.items() if name in _SERIAL), np.zeros(shape))
    return removed, serial


def lock_step_waits(suspects: Sequence[Suspect], features: FeatureSet) -> FloatArray:
    """Waiting of a tensor group's other members inside its layers, (n_ranks, n_steps), seconds.

    Collectives within forward and backward make the other members as slow as the slow rank. So if that rank
    is a suspect, their excess over the reference is waiting for it.
    """
    topology, above = features.topology, features.comparison.phase_excess
    # A fault of the whole job does not explain which member of a group is late.
    named = named_ranks(suspect for suspect in suspects if suspect.component.scope != "job")
    waits = np.zeros(features.comparison.excess.shape)
    compute = [_positive(above[name]) for name in ("forward_seconds", "backward_seconds") if name in above]
    if not named or not compute or topology.n_workers == topology.n_ranks:
        return waits
    held_up = np.minimum(sum(compute, waits), _positive(features.comparison.excess))
    worker = topology.worker
    is_named = np.zeros(topology.n_ranks, dtype=bool)
    is_named[named] = True
    for members in group_members(worker):
        late = is_named[members]
        if not late.any():
            continue
        waits[members[~late]] = np.minimum(held_up[members[~late]], held_up[members[late]].max(axis=0))
    return waits


def transfer_excess(features: FeatureSet) -> FloatArray:
    """Transfer in the slow segment above that of the other steps, seconds, shape (n_steps,)."""
    transfer, segment = nan_median(features.work.transfer), features.comparison.segment
    if segment.whole:
        return np.zeros(transfer.size)
    slow = segment.mask(transfer.size)
    return _positive(np.where(slow, transfer - nan_median(transfer[~slow]), 0.0))


def _lag(rows: list[int], features: FeatureSet) -> FloatArray:
    transfer = features.work.transfer
    above = _positive(transfer[rows] - nan_median(transfer)[None, :])
    inside = features.comparison.segment.mask(transfer.shape[1])
    noticed = above[:, inside].mean(axis=1) >= MIN_LAG * features.work.step_reference
    return np.asarray(above * noticed[:, None])


def _without_peers(rows: list[int], features: FeatureSet) -> BoolArray:
    """Ranks with most of their stage in the component, if the job has quiet steps; (len(rows), 1)."""
    stage = features.topology.stage
    size = np.bincount(stage, minlength=features.topology.n_stages)
    within = np.bincount(stage[rows], minlength=size.size)
    mostly = 2 * within[stage[rows]] > size[stage[rows]]
    return (mostly & (not features.comparison.segment.whole))[:, None]


def _quiet(seconds: FloatArray, features: FeatureSet) -> FloatArray:
    """Each rank's median outside the slow segment, shape (n_ranks, 1)."""
    inside = features.comparison.segment.mask(seconds.shape[1])
    return nan_median(seconds[:, ~inside], axis=1)[:, None]


def _balanced(seconds: FloatArray, features: FeatureSet) -> FloatArray:
    """Mean over the ranks of each stage, per step."""
    result = np.full(seconds.shape, np.nan)
    for members in group_members(features.topology.stage):
        result[members] = nan_mean(seconds[members])
    return result


def _other_stages(seconds: FloatArray, rows: list[int], features: FeatureSet) -> FloatArray:
    """Median of the other stages, per step."""
    stage = features.topology.stage
    return nan_median(seconds[~np.isin(stage, stage[rows])])[None, :]


def _balances(suspect: Suspect) -> bool:
    """Whether removing the suspect's likeliest cause would move work instead of removing it."""
    return next(iter(suspect.causes), None) == "sequence_length_imbalance"


def _usual(seconds: FloatArray) -> FloatArray:
    return nan_quantile(seconds, USUAL_QUANTILE, axis=1)[:, None]


def _positive(values: FloatArray) -> FloatArray:
    result: FloatArray = np.maximum(np.where(np.isfinite(values), values, 0.0), 0.0)
    return result
