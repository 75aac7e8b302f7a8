"""Effect sizes: how faults of one mechanism change phases and signals in real and in simulated windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from rca.arrays import FloatArray
from rca.evaluation.intervals import Estimate, bootstrap
from rca.evaluation.realism.measure import PEERS, Level, Measured
from rca.features.resource_evidence import RESOURCES
from rca.telemetry.catalogue import unit_of_channel
from rca.telemetry.schema import PHASES

#: Share of a step that both sides of a phase's ratio get added, so that short phases have no large ratio.
PHASE_FLOOR = 0.01
#: The same for channels without a floor of their resource, as a share of the largest level.
CHANNEL_FLOOR = 0.02
#: Windows that a median needs.
LEAST_WINDOWS = 3
#: A real median beyond these quantiles of the simulated windows is outside.
OUTSIDE = (0.05, 0.95)
RATIO, BEFORE, DURING = "ratio", "before", "during"
ALL = "all"

_PHASE_NAMES = frozenset(name.removesuffix("_seconds") for name in PHASES)


@dataclass(frozen=True)
class Effect:
    """One quantity of one mechanism, real against simulated.

    Attributes
    ----------
    cause, mechanism, quantity : str
        The quantity is ``"victim forward"``, ``"peers cpu_throttled"``, ...
    moment : str
        ``"ratio"`` (during over before), or a level ``"before"`` or ``"during"``.
    unit : str
    real, simulated : Estimate
        Medians over windows with bootstrap intervals.
    quantile : float
        Where the real median lies in the simulated distribution.
    doublings : float
        log2 of the real over the simulated median; the quantity's floor is added to both.
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
        """Whether the intervals are disjoint and the real median is outside the simulated distribution."""
        disjoint = self.real.low > self.simulated.high or self.real.high < self.simulated.low
        return bool(disjoint and not OUTSIDE[0] <= self.quantile <= OUTSIDE[1])


def effects(
    real: Sequence[Measured], simulated: Sequence[Measured], rng: np.random.Generator
) -> list[Effect]:
    """Compare every quantity of every mechanism that both sides have, and the levels before any fault.

    Levels before a fault do not depend on the fault. The mechanism `ALL` compares them over all windows, on
    ranks without a fault.
    """
    floors = _floors([*real, *simulated])
    found = _before_any_fault(real, simulated, floors, rng)
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


def _before_any_fault(
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


def largest(found: Sequence[Effect], n: int) -> list[Effect]:
    """The effects that are apart, those with the most doublings first."""
    return sorted((one for one in found if one.apart), key=lambda one: -abs(one.doublings))[:n]


def _effect(
    label: tuple[str, str, str, str, str],
    pair: Sequence[FloatArray],
    raised: float,
    rng: np.random.Generator,
) -> Effect | None:
    real, simulated = (values[np.isfinite(values)] for values in pair)
    if min(real.size, simulated.size) < LEAST_WINDOWS:
        return None
    left, right = (bootstrap(values, rng, np.median) for values in (real, simulated))
    ratio = (left.value + raised) / (right.value + raised) if right.value + raised > 0 else float("nan")
    doublings = float(np.log2(ratio)) if ratio > 0 else float("nan")
    return Effect(*label, left, right, quantile_within(left.value, simulated), doublings)


def quantile_within(value: float, sample: FloatArray) -> float:
    """Share of the sample below a value, ties counted half; NaN if either is unknown."""
    held = sample[np.isfinite(sample)]
    if held.size == 0 or not np.isfinite(value):
        return float("nan")
    return float(((held < value).sum() + 0.5 * (held == value).sum()) / held.size)


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
    """The floor of every phase and channel; the ratio of two levels far below it is 1."""
    # A resource's unit is the smallest difference that matters; a tenth of it is negligible.
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
