"""Calibrated intervals of costs: bootstrap intervals with margins from held-out windows.

The bootstrap measures how much the steps of a window differ. It does not include an error of the reference,
so its coverage is too low. The margins come from split conformal prediction on held-out windows with known
costs, per group of windows with similar errors [1]_.

References
----------
.. [1] Romano, Patterson, Candes, Conformalized quantile regression, 2019: here with one quantile per end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

#: From this belief on, similar causes hardly share the cost.
CERTAIN_BELIEF = 0.9
#: A cause with this share of the slowdown leaves little to the others.
MAJORITY = 0.5
#: The widest group: all windows.
ANY = "any"


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
    named = (margins[name] for name in (*wider_groups(group), ANY) if name in margins)
    margin = next(named, Margin())
    end = min(high, lost)
    return min(low, lost) * margin.below, end + margin.above * (lost - end)


def wider_groups(group: str) -> tuple[str, ...]:
    """The group, and the wider groups that contain it."""
    parts = group.split("-")
    return tuple("-".join(parts[:n]) for n in range(len(parts), 0, -1))
