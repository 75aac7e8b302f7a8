"""Grouped folds: the windows that each fold learns from, and the windows that it tests."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray
from rca.lab.evaluation.judged_rows import SEVERITIES, WORLD_SIZES, size_band
from rca.lab.simulation.faults import FIRST_CAUSES
from rca.lab.training.cross_validation.pool import Cell, Pool
from rca.sources.labels import Part
from rca.window.causes import CAUSES

#: The baseline of all other splits: tested windows are of the same kinds as the learned ones.
SEEN = "other scenarios"
SEVERITY = "causes at other severities"
WORLD_SIZE = "other world sizes"
SIMULATION = "captures, learned from simulation only"
#: Facts of a capture that are held out value by value, and the words for them.
CAPTURE_FACTS = {"scenario": "scenarios", "cluster": "clusters", "model": "models"}

#: Healthy windows per tested window of a cell: a false-alarm rate needs many.
HEALTHY_PER_CELL = 12
SCENARIO_FOLDS = 3
#: One group in so many of those that a group fold learns from calibrates, about as in a training.
CALIBRATES = 6
#: Folds per severity. Causes of one type are in different folds. One fold per cause would need many fits; a
#: single fold would leave too little to learn from.
CAUSE_GROUPS = 2
#: One captured group in eight of each failure mode calibrates, and one validates: places in the order.
_PART_OF_PLACE: dict[int, Part] = {1: "calibration", 4: "validation"}
_PLACES = 8


@dataclass(frozen=True)
class Fold:
    """One fit and its test.

    Attributes
    ----------
    split : str
        What the split holds out; folds of one split are scored together.
    held_out : str
        What this fold holds out.
    part : tuple of Part
        Of each window of the pool; exactly the windows that must not be learned from are ``test``.
    tested : tuple of int
        Positions in the pool's origins.
    """

    split: str
    held_out: str
    part: tuple[Part, ...]
    tested: tuple[int, ...]

    @property
    def learned(self) -> BoolArray:
        """Windows of the pool that are learned from, shape (n_windows,)."""
        learned: BoolArray = np.array(self.part) != "test"
        return learned


def folds(pool: Pool, per_cell: int) -> list[Fold]:
    """All folds that hold out a kind of job; those of captures only if there are captures.

    Parameters
    ----------
    per_cell : int
        Largest number of tested simulated windows of each cause and severity.
    """
    tested = scenarios_to_test(pool, per_cell)
    return [
        *_other_scenarios(pool, tested),
        *_severities(pool, tested),
        *_world_sizes(pool, tested),
        *_captures(pool),
    ]


def scenarios_to_test(pool: Pool, per_cell: int) -> list[int]:
    """Origins of the tested simulated windows: healthy, or with one fault that has an effect."""
    taken: Counter[Cell] = Counter()
    healthy: Cell = ("healthy", "")
    found = []
    for position, origin in enumerate(pool.origins):
        if origin.real or len(origin.cells) > 1 or (origin.mode == "healthy") != (not origin.cells):
            continue
        cell = next(iter(origin.cells), healthy)
        if taken[cell] < per_cell * (HEALTHY_PER_CELL if cell == healthy else 1):
            taken[cell] += 1
            found.append(position)
    return found


def group_folds(pool: Pool, n: int, salt: str, stratum_of: Mapping[str, str]) -> list[Fold]:
    """Folds of whole groups; every fold and every part gets the same share of each stratum.

    Parameters
    ----------
    n : int
        Number of folds.
    salt : str
        Another salt gives other folds: inner folds must not repeat the outer ones.
    stratum_of : mapping of str to str
        Stratum of each group. Windows of other groups are neither learned from nor tested.
    """
    place = places(stratum_of, salt)

    def part_of(group: str, number: int) -> Part:
        if group not in place or place[group] % n == number:
            return "test"
        return "calibration" if place[group] // n % CALIBRATES == 0 else "train"

    groups = np.array(pool.corpus.group)
    found = []
    for number in range(n):
        held = [group for group, each in place.items() if each % n == number]
        found.append(
            Fold(
                split=f"{SEEN}, {salt}",
                held_out=f"{number + 1} of {n}",
                part=tuple(part_of(group, number) for group in pool.corpus.group),
                tested=tuple(np.unique(pool.origin[np.isin(groups, held)]).tolist()),
            )
        )
    return found


def _fold(pool: Pool, split: str, held_out: str, learned: BoolArray, tested: Sequence[int]) -> Fold:
    """A fold whose learned windows are divided into the parts of a training.

    Simulated scenarios keep their part by hash; ``test`` becomes ``train``. Captures are few, so a hash could
    leave a part without a failure mode. Their groups are dealt to the parts, mode by mode.
    """
    corpus = pool.corpus
    captured = np.flatnonzero(learned & ~pool.simulated)
    place = places({corpus.group[position]: corpus.mode[position] for position in captured})
    part: list[Part] = []
    for kept, real, own, group in zip(learned, corpus.real, corpus.part, corpus.group, strict=True):
        if not kept:
            part.append("test")
        elif real:
            part.append(_PART_OF_PLACE.get(place[group] % _PLACES, "train"))
        else:
            part.append("train" if own == "test" else own)
    return Fold(split, held_out, tuple(part), tuple(tested))


def places(stratum_of: Mapping[str, str], salt: str = "") -> dict[str, int]:
    """Place of each name within its stratum, in an order that depends on a hash of the name only."""
    found: dict[str, int] = {}
    taken: Counter[str] = Counter()
    for name in sorted(stratum_of, key=lambda each: hashlib.sha256(f"{salt}{each}".encode()).digest()):
        found[name] = taken[stratum_of[name]]
        taken[stratum_of[name]] += 1
    return found


def _without(pool: Pool, held: Collection[int]) -> BoolArray:
    return ~np.isin(pool.origin, list(held))


def _other_scenarios(pool: Pool, tested: Sequence[int]) -> Iterator[Fold]:
    place = places({pool.origins[position].id: "" for position in tested})
    for number in range(SCENARIO_FOLDS):
        held = [each for each in tested if place[pool.origins[each].id] % SCENARIO_FOLDS == number]
        name = f"{number + 1} of {SCENARIO_FOLDS}"
        yield _fold(pool, SEEN, name, pool.simulated & _without(pool, held), tuple(held))


def _severities(pool: Pool, tested: Sequence[int]) -> Iterator[Fold]:
    known = {*FIRST_CAUSES, *(cause for origin in pool.origins for cause, _ in origin.cells)}
    by_type = sorted((name for name in CAUSES if name in known), key=lambda name: CAUSES[name].type)
    for number in range(CAUSE_GROUPS):
        causes = by_type[number::CAUSE_GROUPS]
        for _, band in SEVERITIES:
            cells = {(cause, band) for cause in causes}
            held = {position for position, origin in enumerate(pool.origins) if origin.cells & cells}
            wanted = tuple(position for position in tested if position in held)
            name = f"{band}: {', '.join(causes)}"
            yield _fold(pool, SEVERITY, name, pool.simulated & _without(pool, held), wanted)


def _world_sizes(pool: Pool, tested: Sequence[int]) -> Iterator[Fold]:
    bands = np.array([size_band(size) for size in pool.world_size.tolist()])
    for _, band in WORLD_SIZES:
        wanted = tuple(each for each in tested if size_band(pool.origins[each].world_size) == band)
        yield _fold(pool, WORLD_SIZE, band, pool.simulated & (bands != band), wanted)


def _captures(pool: Pool) -> Iterator[Fold]:
    """Captures held out by a fact; as in a training, all other windows are learned from."""
    captured = {position: origin for position, origin in enumerate(pool.origins) if origin.real}
    if not captured:
        return
    yield _fold(pool, SIMULATION, "all captures", pool.simulated, tuple(captured))
    for fact, name in CAPTURE_FACTS.items():
        kind = {position: str(getattr(origin, fact)) for position, origin in captured.items()}
        if fact == "scenario":
            mode = {origin.scenario: origin.mode for origin in captured.values()}
            place = places(mode)
            kind = {
                position: f"{place[each] % SCENARIO_FOLDS + 1} of {SCENARIO_FOLDS}"
                for position, each in kind.items()
            }
        kinds = sorted(set(kind.values()) - {""})
        for held_out in kinds if len(kinds) > 1 else ():
            held = tuple(position for position, each in kind.items() if each == held_out)
            yield _fold(pool, f"captures of other {name}", held_out, _without(pool, held), held)
