"""Simulated scenarios, diagnosed or turned into examples without writing windows to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike

from rca.diagnosis import Bundle, diagnose
from rca.diagnosis.bundle import baseline
from rca.lab.evaluation.answer import MethodAnswer
from rca.lab.evaluation.baselines_forest import ForestExample, forest_example
from rca.lab.evaluation.judged_rows import PRODUCT, JudgedRow, judged_row
from rca.lab.evaluation.signal_sets import restrict
from rca.lab.simulation.corpus import for_each_scenario, simulated_window
from rca.workers import Workers, counted

#: Scenarios that a worker gets at once.
CHUNK = 8

BundlePath = str | PathLike[str] | None


def evaluate_simulated(
    seeds: Iterable[int],
    bundles: Sequence[BundlePath],
    *,
    signals: Sequence[str] = ("all",),
    workers: Workers,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[JudgedRow]]:
    """Simulate the scenarios of the seeds, diagnose them with every bundle, and judge the answers.

    Parameters
    ----------
    bundles : sequence of path or None
        Bundle folders; None is the shipped one.
    signals : sequence of str
        Keys of `rca.lab.evaluation.signal_sets.SIGNAL_SETS`.

    Returns
    -------
    list of list of JudgedRow
        Per bundle the rows of all scenarios in order, one per set of signals; bundles match row by row.
    """
    todo = list(seeds)
    found: list[list[JudgedRow]] = [[] for _ in bundles]
    every = _judged(todo, tuple(bundles), tuple(signals), workers)
    for judged in counted(every, len(todo), progress):
        for rows, fresh in zip(found, judged, strict=True):
            rows += fresh
    return found


def _judged(
    seeds: Sequence[int], bundles: tuple[BundlePath, ...], signals: tuple[str, ...], workers: Workers
) -> Iterator[list[list[JudgedRow]]]:
    judges = _Judges.load(bundles, signals)
    yield from workers.map(judges.rows, seeds, chunk=CHUNK)


@dataclass(frozen=True)
class _Judges:
    """Loaded bundles, and the sets of signals."""

    bundles: tuple[Bundle, ...]
    signals: tuple[str, ...]

    @classmethod
    def load(cls, paths: tuple[BundlePath, ...], signals: tuple[str, ...]) -> _Judges:
        return cls(tuple(baseline() if path is None else Bundle.load(path) for path in paths), signals)

    def rows(self, seed: int) -> list[list[JudgedRow]]:
        window, label = simulated_window(seed)
        shown = {name: restrict(window, name) for name in self.signals}
        return [
            [
                judged_row(
                    f"simulation-{seed}",
                    window,
                    label,
                    signals=name,
                    method=PRODUCT,
                    answer=MethodAnswer.from_diagnosis(diagnose(part, bundle=bundle)),
                )
                for name, part in shown.items()
            ]
            for bundle in self.bundles
        ]


def simulated_forest_examples(seeds: Iterable[int], *, workers: Workers) -> Iterator[ForestExample]:
    """Simulate the scenarios of the seeds for fitting; `workers` have no influence on the rows."""
    return for_each_scenario(_forest_example, seeds, workers=workers)


def _forest_example(seed: int) -> ForestExample:
    return forest_example(*simulated_window(seed, with_steps=True))
