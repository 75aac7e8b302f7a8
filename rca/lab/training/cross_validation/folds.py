"""Grouped folds: the windows that each fold learns from, and the windows that it tests."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, IntArray
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

#: Healthy windows per tested window of a cell: a false-alarm rate needs many.
HEALTHY_PER_CELL = 12
SCENARIO_FOLDS = 3
#: Folds per severity. Causes of one type are in different folds. One fold per cause would need many fits; a
#: single fold would leave too little to learn from.
CAUSE_GROUPS = 2
#: One captured group in eight calibrates, and one validates.
PARTS = 8


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


def _fold(pool: Pool, split: str, held_out: str, learned: BoolArray, tested: Sequence[int]) -> Fold:
    """A fold whose learned windows are divided into the parts of a training.

    Simulated scenarios keep their part by hash; ``test`` becomes ``train``. Captures are few, so a hash could
    leave a part without a failure mode. Their groups are dealt to the parts, mode by mode.
    """
    corpus = pool.corpus
    own = np.array(corpus.part)
    part = np.where(learned, np.where(own == "test", "train", own), "test").astype("<U11")
    captured = np.flatnonzero(learned & ~pool.simulated)
    modes, groups = np.array(corpus.mode)[captured], np.array(corpus.group)[captured]
    part[captured] = "train"
    for name, dealt in zip(("calibration", "validation"), _dealt(modes, groups, PARTS), strict=False):
        part[captured[dealt]] = name
    return Fold(split, held_out, tuple(part.tolist()), tuple(tested))


def _dealt(strata: np.ndarray, groups: np.ndarray, n: int) -> Iterator[IntArray]:
    """Positions of whole groups in `n` folds with like shares of each stratum; none if there are too few."""
    from sklearn.model_selection import StratifiedGroupKFold

    if np.unique(groups).size < n:
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        for _, held in StratifiedGroupKFold(n, shuffle=True, random_state=0).split(strata, strata, groups):
            yield held


def _one_out(values: Sequence[str]) -> Iterator[tuple[str, IntArray]]:
    """Each value and the positions that have it, if there are several values."""
    from sklearn.model_selection import LeaveOneGroupOut

    if len(set(values)) > 1:
        for _, held in LeaveOneGroupOut().split(values, groups=values):
            yield values[held[0]], held


def _without(pool: Pool, held: Collection[int]) -> BoolArray:
    return ~np.isin(pool.origin, list(held))


def _other_scenarios(pool: Pool, tested: Sequence[int]) -> Iterator[Fold]:
    from sklearn.model_selection import GroupKFold

    names = [pool.origins[position].id for position in tested]
    deal = GroupKFold(SCENARIO_FOLDS, shuffle=True, random_state=0).split(names, groups=names)
    for number, (_, places) in enumerate(deal, start=1):
        held = np.array(tested)[places].tolist()
        learned = pool.simulated & _without(pool, held)
        yield _fold(pool, SEEN, f"{number} of {SCENARIO_FOLDS}", learned, held)


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
    held = dict(_one_out([size_band(pool.origins[each].world_size) for each in tested]))
    for band in (name for _, name in WORLD_SIZES if name in held):
        wanted = np.array(tested)[held[band]].tolist()
        yield _fold(pool, WORLD_SIZE, band, pool.simulated & (bands != band), wanted)


def _captures(pool: Pool) -> Iterator[Fold]:
    """Captures held out by a fact; as in a training, all other windows are learned from."""
    captured = np.array([position for position, origin in enumerate(pool.origins) if origin.real], dtype=int)
    if not captured.size:
        return
    origins = [pool.origins[position] for position in captured]
    yield _fold(pool, SIMULATION, "all captures", pool.simulated, captured.tolist())
    modes, scenarios = (np.array([getattr(each, name) for each in origins]) for name in ("mode", "scenario"))
    splits = [
        ("scenarios", f"{number} of {SCENARIO_FOLDS}", held)
        for number, held in enumerate(_dealt(modes, scenarios, SCENARIO_FOLDS), start=1)
    ]
    for fact in ("cluster", "model"):
        known = [place for place, each in enumerate(origins) if getattr(each, fact)]
        values = [str(getattr(origins[place], fact)) for place in known]
        splits += [(f"{fact}s", value, np.array(known)[held]) for value, held in _one_out(values)]
    for name, held_out, places in splits:
        held = captured[places].tolist()
        yield _fold(pool, f"captures of other {name}", held_out, _without(pool, held), held)
