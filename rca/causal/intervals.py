"""Calibrated intervals of costs: bootstrap intervals with margins from held-out windows.

The bootstrap measures how much the steps of a window differ. It does not include an error of the reference,
so its coverage is too low. The margins come from split conformal prediction on held-out windows with known
costs, per group of windows with similar errors [1]_.

References
----------
.. [1] Romano, Patterson, Candes, Conformalized quantile regression, 2019: here with one quantile per end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import NamedTuple

import numpy as np

#: From this belief on, similar causes hardly share the cost.
CERTAIN_BELIEF = 0.9
#: A cause with this share of the slowdown leaves little to the others.
MAJORITY = 0.5
#: A group with fewer held-out windows than this uses the margin of the next wider group.
MIN_GROUP = 80
#: The widest group: all windows.
ANY = "any"
_TINY = 1e-12


class Margin(NamedTuple):
    """How far an interval is widened; `(1, 0)` does not change it.

    Attributes
    ----------
    below : float
        Factor of the lower end, 0 to 1.
    above : float
        How far the upper end moves towards the whole slowdown, as a share (0 to 1) of the way.
    """

    below: float = 1.0
    above: float = 0.0


class HeldOutCost(NamedTuple):
    """One cause of a held-out window: its bootstrap interval and its true cost, seconds per step.

    `lost` is the upper end of the whole slowdown: in the diagnosis no cause costs more.
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
        Whether the window has normal steps to compare the slow ones with.
    share : float
        The cause's share of the slowdown.
    """
    names = (
        "past" if past else "peers",
        "sure" if belief >= CERTAIN_BELIEF else "unsure",
        "most" if share >= MAJORITY else "part",
    )
    return "-".join(names)


def fit_margins(held: Sequence[HeldOutCost], level: float) -> dict[str, Margin]:
    """Margins for intervals that cover at `level`; each end may miss half of the rest.

    A group of fewer than `MIN_GROUP` has no margin of its own and uses that of the next wider group. For
    ``peers-unsure-part`` these are ``peers-unsure``, ``peers`` and `ANY`.

    Notes
    -----
    True costs above `HeldOutCost.lost` do not count for the upper end: the measured slowdown was too small
    there, and no share of it can cover them.
    """
    groups: dict[str, list[HeldOutCost]] = {ANY: list(held)}
    for each in held:
        for name in _wider_groups(each.group):
            groups.setdefault(name, []).append(each)
    return {
        name: _margin(members, (1.0 + level) / 2)
        for name, members in sorted(groups.items())
        if name == ANY or len(members) >= MIN_GROUP
    }


def widened(
    margins: Mapping[str, Margin], group: str, low: float, high: float, lost: float
) -> tuple[float, float]:
    """The interval with its group's margin, unchanged without one, and never above `lost`.

    Parameters
    ----------
    margins : mapping of interval group to Margin
    low, high, lost : float, seconds per step
        The bootstrap interval and the upper end of the whole slowdown.
    """
    named = (margins[name] for name in (*_wider_groups(group), ANY) if name in margins)
    margin = next(named, Margin())
    end = min(high, lost)
    return min(low, lost) * margin.below, end + margin.above * (lost - end)


def coverage(held: Sequence[HeldOutCost], margins: Mapping[str, Margin]) -> float:
    """Share of the true costs within the widened intervals; NaN without costs."""
    inside = []
    for each in held:
        low, high = widened(margins, each.group, each.low, each.high, each.lost)
        inside.append(low <= each.true <= high)
    return float(np.mean(inside)) if inside else float("nan")


def share_beyond_lost(held: Sequence[HeldOutCost]) -> float:
    """Share of the true costs above the upper end of the whole slowdown; NaN without costs."""
    return float(np.mean([each.true > each.lost for each in held])) if held else float("nan")


def _wider_groups(group: str) -> tuple[str, ...]:
    """The group, and the wider groups that contain it."""
    parts = group.split("-")
    return tuple("-".join(parts[:n]) for n in range(len(parts), 0, -1))


def _margin(held: Sequence[HeldOutCost], level: float) -> Margin:
    """Margins with which each end is on its side of the true cost in `level` of the cases."""
    ratios = np.sort([1.0 if each.true >= each.low else each.true / each.low for each in held])
    ways = np.sort([_position(each) for each in held if each.true <= each.lost])
    if not held:
        return Margin()
    lowest, highest = floor((ratios.size + 1) * (1.0 - level)), ceil((ways.size + 1) * level)
    return Margin(
        below=float(ratios[lowest - 1]) if lowest else 0.0,
        above=float(ways[highest - 1]) if highest <= ways.size else 1.0,
    )


def _position(held: HeldOutCost) -> float:
    """Position of the true cost between the interval's upper end (0) and the whole slowdown (1)."""
    left = held.lost - held.high
    return min(max((held.true - held.high) / left, 0.0), 1.0) if left > _TINY else 0.0
