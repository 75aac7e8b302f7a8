"""Effect sizes: what faults of one mechanism do to phases and signals, in real and in simulated windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from rca.arrays import FloatArray
from rca.evaluation.intervals import UNKNOWN, Estimate, bootstrap
from rca.evaluation.realism.distances import quantile_within
from rca.evaluation.realism.measure import PEERS, Level, Measured
from rca.features.resource_evidence import RESOURCES
from rca.telemetry.catalogue import unit_of_channel
from rca.telemetry.window import PHASES

#: A phase below this share of a step is too short for its ratio to mean anything.
PHASE_FLOOR = 0.01
#: The same for channels that no resource gives a floor: share of the largest level of either side.
CHANNEL_FLOOR = 0.02
#: Real windows that a median needs.
LEAST_WINDOWS = 3
#: Real medians beyond these quantiles of the simulated distribution are called outside.
OUTSIDE = (0.05, 0.95)
RATIO, BEFORE, DURING = "ratio", "before", "during"
ALL = "all"
STEP = "step time"

_PHASE_NAMES = frozenset(name.removesuffix("_seconds") for name in PHASES)


@dataclass(frozen=True)
class Effect:
    """One quantity of one mechanism, real against simulated.

    Attributes
    ----------
    cause, mechanism, quantity : str
        The quantity is ``"victim forward"``, ``"peers cpu_throttled"``, ...
    moment : str
        ``"ratio"`` (during over before), a level ``"before"`` or ``"during"``, or ``"at severity 0.67"``.
    unit : str
    real, simulated : Estimate
        Medians over windows with bootstrap intervals.
    quantile : float
        Where the real median lies in the simulated distribution.
    doublings : float
        log2 of the real over the simulated median, both raised by the quantity's floor.
    """

    cause: str
    mechanism: str
    quantity: str
    moment: str
    unit: str
    real: Estimate
    simulated: Estimate
    quantile: float
    doublings: float

    @property
    def apart(self) -> bool:
        """Whether the intervals are disjoint, and the real median is outside the simulated distribution."""
        disjoint = self.real.low > self.simulated.high or self.real.high < self.simulated.low
        return bool(disjoint and not OUTSIDE[0] <= self.quantile <= OUTSIDE[1])


def effects(
    real: Sequence[Measured], simulated: Sequence[Measured], rng: np.random.Generator
) -> list[Effect]:
    """Compare every quantity of every mechanism that both sides show, and the calm levels of all jobs.

    Levels before a fault do not depend on what comes: under the mechanism `ALL` they are compared over all
    windows, ranks without a fault only.
    """
    floors = _floors([*real, *simulated])
    found = _calm(real, simulated, floors, rng)
    for cause, mechanism in sorted({(each.cause, each.mechanism) for each in real}):
        sides = [[one for one in side if one.mechanism == mechanism] for side in (real, simulated)]
        for quantity in sorted(set(chain.from_iterable(one.levels for one in chain(*sides)))):
            floor = floors[_bare(quantity)]
            for moment in (RATIO, BEFORE, DURING):
                pair = [_values(side, quantity, moment, floor) for side in sides]
                raised = 0.0 if moment == RATIO else floor
                unit = "x" if moment == RATIO else _unit(quantity)
                label = (cause, mechanism, quantity, moment, unit)
                effect = _effect(label, pair, raised, rng)
                if effect is not None:
                    found.append(effect)
    return found


def _calm(
    real: Sequence[Measured],
    simulated: Sequence[Measured],
    floors: Mapping[str, float],
    rng: np.random.Generator,
) -> list[Effect]:
    names = set(chain.from_iterable(one.levels for one in (*real, *simulated)))
    found = []
    for quantity in sorted(name for name in names if name.startswith(PEERS)):
        pair = [_values(side, quantity, BEFORE, floors[_bare(quantity)]) for side in (real, simulated)]
        effect = _effect((ALL, ALL, quantity, BEFORE, _unit(quantity)), pair, floors[_bare(quantity)], rng)
        if effect is not None:
            found.append(effect)
    return found


def severity_effects(
    real: Sequence[Measured], at_label: Mapping[str, FloatArray], rng: np.random.Generator
) -> list[Effect]:
    """Compare step ratios where real and simulated faults are labelled with the same severity.

    Parameters
    ----------
    at_label : mapping of group to ndarray of shape (n_twins,)
        Slowdown of each twin, had it the severity its capture is labelled with.
    """
    found = []
    known = [each for each in real if np.isfinite(each.ratio) and each.group in at_label]
    keys = sorted({(each.cause, each.mechanism, round(each.severity, 2)) for each in known})
    for cause, mechanism, severity in keys:
        side = [e for e in known if e.mechanism == mechanism and round(e.severity, 2) == severity]
        pair = [
            np.array([each.ratio for each in side]),
            np.concatenate([at_label[each.group] for each in side]),
        ]
        label = (cause, mechanism, STEP, f"at severity {severity:.2f}", "x")
        effect = _effect(label, pair, 0.0, rng, least=1)
        if effect is not None:
            found.append(effect)
    return found


def largest(found: Sequence[Effect], n: int) -> list[Effect]:
    """The effects that are clearly apart, by doublings."""
    return sorted((one for one in found if one.apart), key=lambda one: -abs(one.doublings))[:n]


def _effect(
    label: tuple[str, str, str, str, str],
    pair: Sequence[FloatArray],
    raised: float,
    rng: np.random.Generator,
    least: int = LEAST_WINDOWS,
) -> Effect | None:
    real, simulated = (values[np.isfinite(values)] for values in pair)
    if min(real.size, simulated.size) < least:
        return None
    told, made = (_median(values, rng) for values in (real, simulated))
    ratio = (told.value + raised) / (made.value + raised) if made.value + raised > 0 else float("nan")
    doublings = float(np.log2(ratio)) if ratio > 0 else float("nan")
    return Effect(*label, told, made, quantile_within(told.value, simulated), doublings)


def _median(values: FloatArray, rng: np.random.Generator) -> Estimate:
    return bootstrap(values, rng, np.median) if values.size else UNKNOWN


def _values(side: Sequence[Measured], quantity: str, moment: str, floor: float) -> FloatArray:
    absent = Level(float("nan"), float("nan"))
    levels = [one.levels.get(quantity, absent) for one in side]
    before = np.array([level.before for level in levels])
    during = np.array([level.during for level in levels])
    if moment == BEFORE:
        return before
    if moment == DURING:
        return during
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(before + floor > 0, (during + floor) / (before + floor), np.nan)


def _floors(measured: Sequence[Measured]) -> dict[str, float]:
    """Per phase and channel what both sides of a ratio get added: next to nothing over nothing is 1."""
    # A resource's unit is what an engineer would remark; a tenth of it is not worth a doubling.
    known = {
        channel.channel: channel.floor if channel.comparison == "growth" else 0.1 * channel.unit
        for channels in RESOURCES.values()
        for channel in channels
        if channel.comparison != "drop"
    }
    tops: dict[str, float] = {}
    for one in measured:
        for quantity, level in one.levels.items():
            name = _bare(quantity)
            tops[name] = float(np.nanmax([tops.get(name, 0.0), abs(level.before), abs(level.during)]))
    return {
        name: PHASE_FLOOR if name in _PHASE_NAMES else known.get(name, CHANNEL_FLOOR * top)
        for name, top in tops.items()
    }


def _bare(quantity: str) -> str:
    """The phase or channel, without the role."""
    return quantity.split(" ", 1)[1]


def _unit(quantity: str) -> str:
    name = _bare(quantity)
    return "of a step" if name in _PHASE_NAMES else unit_of_channel(name)
