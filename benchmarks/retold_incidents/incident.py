"""What an incident is: where its figures are from, how to make its window, and which answers are right."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rca.window import Window

SLOW = "fail_slow"
STOP = "fail_stop"
HEALTHY = "healthy"


@dataclass(frozen=True)
class Place:
    """Ranks that an answer may name: all of ``at_least``, and none besides ``at_most``."""

    at_least: frozenset[int]
    at_most: frozenset[int]

    def fits(self, ranks: set[int]) -> bool:
        """Whether these ranks, and at least one, are within the bounds."""
        return bool(ranks) and self.at_least <= ranks <= self.at_most


def exactly(*ranks: int) -> Place:
    """These ranks, and no other ones."""
    return Place(frozenset(ranks), frozenset(ranks))


def between(at_least: Iterable[int], at_most: Iterable[int]) -> Place:
    """Ranks that have to be named, and ranks that may be."""
    core = frozenset(at_least)
    return Place(core, core | frozenset(at_most))


def some_of(ranks: Iterable[int]) -> Place:
    """One of these ranks, or several of them."""
    return Place(frozenset(), frozenset(ranks))


def whole(world_size: int) -> Place:
    """All ranks of the job."""
    return exactly(*range(world_size))


@dataclass(frozen=True)
class Expected:
    """Which answers to a window are right.

    Parameters
    ----------
    verdicts : frozenset of str
        One of them has to be the verdict.
    places : tuple of Place
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
    places: tuple[Place, ...] = ()
    causes: frozenset[str] = frozenset()
    may_abstain: bool = False
    lost: float = 0.0

    @property
    def healthy_is_wrong(self) -> bool:
        """Whether a healthy verdict is a failure: the job is faulty, and the window shows that."""
        return HEALTHY not in self.verdicts

    def or_abstains(self) -> Expected:
        """The same, with undecided answers accepted."""
        return replace(self, may_abstain=True)

    def that_lost(self, seconds: float) -> Expected:
        """The same, with the seconds per step that the price has to contain."""
        return replace(self, lost=seconds)


def slow(causes: str, *places: Place) -> Expected:
    """Fail-slow for one of the causes, separated by spaces, at one of the places."""
    return Expected(frozenset({SLOW}), places, frozenset(causes.split()))


def stop(causes: str, *places: Place) -> Expected:
    """Fail-stop for one of the causes, separated by spaces, at one of the places."""
    return Expected(frozenset({STOP}), places, frozenset(causes.split()))


#: A sound job: undecided is a failure too, for it pages the on-call.
SOUND = Expected(frozenset({HEALTHY}))


@dataclass(frozen=True)
class Retold:
    """One window of an incident with the answers that are right."""

    window: Window
    expected: Expected
    earlier: Window | None = None


Maker = Callable[[np.random.Generator, str], Retold]


@dataclass(frozen=True)
class Incident:
    """A public report, retold as one window per variant.

    The variants are ``rich`` (with exporters), ``poor`` (step times and few phases), ``events`` (what ended
    the job), ``bare`` (exporters and step times without phases) and others that the maker describes. If it is
    to be ``refused``, an error is the right answer.
    """

    id: str
    source: str
    variants: tuple[str, ...]
    make: Maker
    refused: bool = False

    @property
    def held_out(self) -> bool:
        """Half of the incidents, by a hash of the id: no threshold may be tuned on them."""
        return hashlib.sha256(self.id.encode()).digest()[0] % 2 == 1

    @property
    def kind(self) -> str:
        """The module that retells it, such as ``fabric``."""
        return self.make.__module__.rsplit(".", 1)[-1]

    def retell(self, variant: str, seed: int = 0) -> Retold:
        """The window of one variant, the same for the same seed."""
        entropy = int.from_bytes(hashlib.sha256(f"{self.id}/{variant}".encode()).digest()[:8], "big")
        return self.make(np.random.default_rng([seed, entropy]), variant)


#: Every incident by its id, in the order of the modules.
INCIDENTS: dict[str, Incident] = {}


def incident(id_: str, source: str, *variants: str, refused: bool = False) -> Callable[[Maker], Maker]:
    """Register the function below as the maker of an incident."""

    def register(make: Maker) -> Maker:
        if id_ in INCIDENTS:
            raise ValueError(f"two incidents have the id {id_}")
        INCIDENTS[id_] = Incident(id_, source, variants or ("rich",), make, refused)
        return make

    return register


Row = dict[str, Any]
