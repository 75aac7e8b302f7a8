"""Which windows each fold learns from and is asked about: everything of one kind is held out at a time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rca.arrays import BoolArray
from rca.evaluation.rows import SEVERITIES, WORLD_SIZES, size_band
from rca.telemetry.causes import CAUSES
from rca.telemetry.labels import Part
from rca.training.corpus import Corpus
from rca.training.generalisation.pool import Cell, Origin, Pool

#: What the other answers are compared with: windows like those learned from, but not these.
SEEN = "windows like those learned from"
SEVERITY = "cause at a severity never seen"
WORLD_SIZE = "world size never seen"
SIMULATION = "simulation"

#: Asked windows that nothing was done to, per window of a cell: a rate of false alarms needs many.
HEALTHY_PER_CELL = 12
SEEN_FOLDS = 3
#: Causes are dealt to so many folds per severity, those of one type apart: held out alone, each cell would
#: cost a fit of its own; held out all together, they would leave too little to learn from.
CAUSE_GROUPS = 2
#: Scenarios of a campaign are dealt to so many folds.
SCENARIO_FOLDS = 3
#: World sizes of captures, told apart more finely than those of clusters: largest size and name.
CAPTURE_SIZES = ((4, "up to 4 ranks"), (8, "5 to 8 ranks"), (np.inf, "over 8 ranks"))
#: Every eighth group of a failure mode each: places in the deal.
_DEALT: dict[int, Part] = {1: "calibration", 4: "validation"}
_DEAL = 8


@dataclass(frozen=True)
class Fold:
    """One fit and its test.

    Attributes
    ----------
    question : str
        Answers of folds with the same question belong into one table.
    name : str
        What is held out.
    learned : ndarray of shape (n_windows,), bool
        Windows of the pool that may be learned from.
    asked : tuple of int
        Positions in the pool's origins.
    """

    question: str
    name: str
    learned: BoolArray
    asked: tuple[int, ...]


class Holding(NamedTuple):
    """A way to hold out captures: by what, and the kind that an origin is of."""

    name: str
    kinds: Callable[[Sequence[Origin]], dict[int, str]]


def folds(pool: Pool, per_cell: int) -> list[Fold]:
    """All folds of a pool; those about captures only where there are any.

    Parameters
    ----------
    pool : Pool
    per_cell : int
        Simulated windows asked of each cause and severity, at most.
    """
    asked = asked_scenarios(pool, per_cell)
    return [
        *_seen(pool, asked),
        *_severities(pool, asked),
        *_world_sizes(pool, asked),
        *_captures(pool),
    ]


def asked_scenarios(pool: Pool, per_cell: int) -> list[int]:
    """Origins of the simulated windows asked: of one felt fault or none, so many of each kind."""
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


def parts(pool: Pool, fold: Fold) -> tuple[Part, ...]:
    """Part of each window in a fold: what may not be learned from is test, and nothing else is.

    Simulated scenarios keep their part by hash. Captures are few, so that a hash could leave a part without
    a failure mode: their groups are dealt out instead, mode by mode.
    """
    corpus = pool.corpus
    learned_real = fold.learned & np.array(corpus.real)
    dealt = _dealt(corpus, learned_real)
    found: list[Part] = []
    for learned, real, part, group in zip(fold.learned, corpus.real, corpus.part, corpus.group, strict=True):
        if not learned:
            found.append("test")
        elif real:
            found.append(dealt[group])
        else:
            found.append("train" if part == "test" else part)
    return tuple(found)


def _dealt(corpus: Corpus, learned: BoolArray) -> dict[str, Part]:
    mode_of: dict[str, str] = {}
    for position in np.flatnonzero(learned):
        mode_of.setdefault(corpus.group[position], corpus.mode[position])
    found: dict[str, Part] = {}
    places: Counter[str] = Counter()
    for group in sorted(mode_of, key=_shuffled):
        mode = mode_of[group]
        found[group] = _DEALT.get(places[mode] % _DEAL, "train")
        places[mode] += 1
    return found


def _shuffled(name: str) -> str:
    """Order that has nothing to do with the name, and is the same on every machine."""
    return hashlib.sha256(name.encode()).hexdigest()


def _simulated(pool: Pool) -> BoolArray:
    return ~np.array(pool.corpus.real)


def _without(pool: Pool, held: Collection[int]) -> BoolArray:
    return ~np.isin(pool.origin, list(held))


def _seen(pool: Pool, asked: Sequence[int]) -> Iterator[Fold]:
    order = sorted(asked, key=lambda position: _shuffled(pool.origins[position].id))
    for number in range(SEEN_FOLDS):
        held = order[number::SEEN_FOLDS]
        name = f"{number + 1} of {SEEN_FOLDS}"
        yield Fold(SEEN, name, _simulated(pool) & _without(pool, held), tuple(sorted(held)))


def _severities(pool: Pool, asked: Sequence[int]) -> Iterator[Fold]:
    by_type = sorted(CAUSES, key=lambda name: CAUSES[name].type)
    for number in range(CAUSE_GROUPS):
        causes = by_type[number::CAUSE_GROUPS]
        for _, band in SEVERITIES:
            cells = {(cause, band) for cause in causes}
            held = {position for position, origin in enumerate(pool.origins) if origin.cells & cells}
            wanted = tuple(position for position in asked if position in held)
            name = f"{band}: {', '.join(causes)}"
            yield Fold(SEVERITY, name, _simulated(pool) & _without(pool, held), wanted)


def _world_sizes(pool: Pool, asked: Sequence[int]) -> Iterator[Fold]:
    bands = np.array([size_band(size) for size in pool.world_size.tolist()])
    for _, band in WORLD_SIZES:
        wanted = tuple(each for each in asked if size_band(pool.origins[each].world_size) == band)
        yield Fold(WORLD_SIZE, band, _simulated(pool) & (bands != band), wanted)


def _captures(pool: Pool) -> Iterator[Fold]:
    everything = tuple(position for position, origin in enumerate(pool.origins) if origin.real)
    if not everything:
        return
    yield Fold(SIMULATION, "all captures", _simulated(pool), everything)
    for holding in HOLDINGS:
        kinds = holding.kinds(pool.origins)
        several = sorted(set(kinds.values()))
        for kind in several if len(several) > 1 else ():
            held = {position for position, each in kinds.items() if each == kind}
            learned = _without(pool, held)
            if holding.name == "world sizes":
                # A larger capture's variant with fewer nodes is of the held-out size, too.
                learned &= ~np.array([capture_size(size) == kind for size in pool.world_size.tolist()])
            wanted = tuple(sorted(held))
            yield Fold(f"captures of other {holding.name}", kind, learned & ~_simulated(pool), wanted)
            if holding.name == "scenarios":
                # As bundles are trained. Models and sizes are told apart within this question's answers.
                question = f"simulation and captures of other {holding.name}"
                yield Fold(question, kind, learned | _simulated(pool), wanted)


def capture_size(world_size: int) -> str:
    """Name of the band of captured jobs' sizes that a number of ranks lies in."""
    return next(name for largest, name in CAPTURE_SIZES if world_size <= largest)


def _scenario_folds(origins: Sequence[Origin]) -> dict[int, str]:
    """Whole scenarios (one fault, whatever its severity, model and size) dealt out, mode by mode."""
    mode_of = {origin.scenario: origin.mode for origin in origins if origin.real}
    order = sorted(mode_of, key=lambda scenario: (mode_of[scenario], _shuffled(scenario)))
    fold_of = {
        scenario: f"scenarios, {place % SCENARIO_FOLDS + 1} of {SCENARIO_FOLDS}"
        for place, scenario in enumerate(order)
    }
    return {position: fold_of[origin.scenario] for position, origin in enumerate(origins) if origin.real}


def _models(origins: Sequence[Origin]) -> dict[int, str]:
    return {position: each.model for position, each in enumerate(origins) if each.real and each.model}


def _sizes(origins: Sequence[Origin]) -> dict[int, str]:
    return {position: capture_size(each.world_size) for position, each in enumerate(origins) if each.real}


HOLDINGS = (
    Holding("scenarios", _scenario_folds),
    Holding("models", _models),
    Holding("world sizes", _sizes),
)
