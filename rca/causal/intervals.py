"""Intervals that keep their promise: bootstrap intervals widened by what held-out windows showed.

The bootstrap knows how much the steps of a window differ. It does not know that the reference may be off, so
it covers less than it says. Margins come from split conformal prediction on held-out windows whose true cost
is known (conformalised quantile regression with one quantile per end, Romano et al., 2019), per group of
windows that err alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import NamedTuple

import numpy as np

#: Beliefs from here on are sure enough that look-alikes do not share the cost.
CERTAIN_BELIEF = 0.9
#: A cause that is charged with this share of what was lost leaves others little to take.
MAJORITY = 0.5
#: A group with fewer held-out windows than this takes the margin of the next wider one.
MIN_GROUP = 80
#: Group of windows that belong to none of the others.
ANY = "any"
_TINY = 1e-12


class Margin(NamedTuple):
    """How far an interval is widened; `(1, 0)` leaves it as it is.

    Attributes
    ----------
    below : float
        What the lower end is multiplied by, 0 to 1.
    above : float
        Share, 0 to 1, of the way that the upper end is moved to all that was lost.
    """

    below: float = 1.0
    above: float = 0.0


class Held(NamedTuple):
    """One cause of a held-out window: its bootstrap interval, and what it really cost (seconds per step).

    `lost` is the most that any cause can have cost by the answer: the upper end of the whole slowdown.
    """

    group: str
    low: float
    high: float
    lost: float
    true: float


def group_of(*, past: bool, belief: float, share: float) -> str:
    """Interval group of a priced cause.

    Parameters
    ----------
    past : bool
        Whether the window holds quiet steps to compare the slow ones with.
    belief : float
    share : float
        Of the slowdown, charged to the cause.
    """
    names = (
        "past" if past else "peers",
        "sure" if belief >= CERTAIN_BELIEF else "unsure",
        "most" if share >= MAJORITY else "part",
    )
    return "-".join(names)


def fit_margins(held: Sequence[Held], level: float) -> dict[str, Margin]:
    """Margins that make the intervals cover at `level`, each end for itself at half of what may be missed.

    Groups of fewer than `MIN_GROUP` have none of their own: the next wider one (``peers-unsure`` of
    ``peers-unsure-part``, then ``peers``, then `ANY`) stands for them.

    Parameters
    ----------
    held : sequence of Held
    level : float

    Notes
    -----
    True costs above `Held.lost` take no part in the upper end: there the slowdown was measured too small,
    which no share of it can make good.
    """
    groups: dict[str, list[Held]] = {ANY: list(held)}
    for each in held:
        for name in _ever_wider(each.group):
            groups.setdefault(name, []).append(each)
    return {
        name: _margin(members, (1.0 + level) / 2)
        for name, members in sorted(groups.items())
        if name == ANY or len(members) >= MIN_GROUP
    }


def widened(
    margins: Mapping[str, Margin], group: str, low: float, high: float, lost: float
) -> tuple[float, float]:
    """The interval with its group's margin; as it was where none was fitted. Never above `lost`.

    Parameters
    ----------
    margins : mapping of interval group to Margin
    group : str
    low, high, lost : float, seconds per step
        Of the bootstrap, and all that was lost.
    """
    named = (margins[name] for name in (*_ever_wider(group), ANY) if name in margins)
    margin = next(named, Margin())
    end = min(high, lost)
    return min(low, lost) * margin.below, end + margin.above * (lost - end)


def coverage(held: Sequence[Held], margins: Mapping[str, Margin]) -> float:
    """Share of the true costs within the widened intervals; NaN for none."""
    inside = []
    for each in held:
        low, high = widened(margins, each.group, each.low, each.high, each.lost)
        inside.append(low <= each.true <= high)
    return float(np.mean(inside)) if inside else float("nan")


def beyond(held: Sequence[Held]) -> float:
    """Share of the true costs that are more than all that was lost by the answer; NaN for none."""
    return float(np.mean([each.true > each.lost for each in held])) if held else float("nan")


def _ever_wider(group: str) -> tuple[str, ...]:
    """The group, and the groups that it is part of."""
    parts = group.split("-")
    return tuple("-".join(parts[:n]) for n in range(len(parts), 0, -1))


def _margin(held: Sequence[Held], level: float) -> Margin:
    """Each end's margin so that it lies on its side of the true cost in `level` of the cases."""
    ratios = np.sort([1.0 if each.true >= each.low else each.true / each.low for each in held])
    ways = np.sort([_way(each) for each in held if each.true <= each.lost])
    if not held:
        return Margin()
    lowest, highest = floor((ratios.size + 1) * (1.0 - level)), ceil((ways.size + 1) * level)
    return Margin(
        below=float(ratios[lowest - 1]) if lowest else 0.0,
        above=float(ways[highest - 1]) if highest <= ways.size else 1.0,
    )


def _way(held: Held) -> float:
    """Share of the way from the interval's upper end to all that was lost at which the true cost lies."""
    left = held.lost - held.high
    return min(max((held.true - held.high) / left, 0.0), 1.0) if left > _TINY else 0.0
