"""Which answers to a window are right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

SLOW, STOP, HEALTHY = "fail_slow", "fail_stop", "healthy"


@dataclass(frozen=True)
class RankBounds:
    """Ranks that an answer may name: all of ``at_least``, and none besides ``at_most``."""

    at_least: frozenset[int]
    at_most: frozenset[int]

    def fits(self, ranks: set[int]) -> bool:
        """Whether these ranks, and at least one, are within the bounds."""
        return bool(ranks) and self.at_least <= ranks <= self.at_most


def exactly(*ranks: int) -> RankBounds:
    """These ranks, and no other ones."""
    return RankBounds(frozenset(ranks), frozenset(ranks))


def between(at_least: Iterable[int], at_most: Iterable[int]) -> RankBounds:
    """Ranks that have to be named, and ranks that may be."""
    core = frozenset(at_least)
    return RankBounds(core, core | frozenset(at_most))


def some_of(ranks: Iterable[int]) -> RankBounds:
    """One of these ranks, or several of them."""
    return RankBounds(frozenset(), frozenset(ranks))


def whole(world_size: int) -> RankBounds:
    """All ranks of the job."""
    return exactly(*range(world_size))


@dataclass(frozen=True)
class Expected:
    """Which answers to a window are right.

    Parameters
    ----------
    verdicts : frozenset of str
        One of them has to be the verdict.
    places : tuple of RankBounds
        The blamed ranks have to fit one of them. Empty: the place is not judged.
    causes : frozenset of str
        The first cause has to be one of them; ``unknown`` stands for an answer without a cause, too.
        Empty: the cause is not judged.
    may_abstain : bool
        An undecided answer is acceptable, because the window does not tell.
    lost : float, seconds per step
        Time that no timer covers. An answer that prices the slowdown at less than half of it is not right.
    """

    verdicts: frozenset[str]
    places: tuple[RankBounds, ...] = ()
    causes: frozenset[str] = frozenset()
    may_abstain: bool = False
    lost: float = 0.0

    def or_abstains(self, abstains: bool = True) -> Expected:
        """The same, with undecided answers accepted."""
        return replace(self, may_abstain=self.may_abstain or abstains)

    def that_lost(self, seconds: float) -> Expected:
        """The same, with the seconds per step that the price has to contain."""
        return replace(self, lost=seconds)


def slow(causes: str, *places: RankBounds) -> Expected:
    """Fail-slow for one of the causes, separated by spaces, at one of the places."""
    return Expected(frozenset({SLOW}), places, frozenset(causes.split()))


def stop(causes: str, *places: RankBounds) -> Expected:
    """Fail-stop for one of the causes, separated by spaces, at one of the places."""
    return Expected(frozenset({STOP}), places, frozenset(causes.split()))


#: A sound job: undecided is a failure too, for it pages the on-call.
SOUND = Expected(frozenset({HEALTHY}))
