"""The test of a written bundle on windows that took no part in a fit, a calibration or a threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rca.errors import InvalidInput
from rca.lab.evaluation.judged_rows import JudgedRow
from rca.lab.evaluation.run import EvaluationPlan, evaluate_entries
from rca.lab.evaluation.signal_sets import SIGNAL_SETS
from rca.lab.evaluation.simulated import evaluate_simulated
from rca.lab.evaluation.summary import rounded, summarise
from rca.lab.training.corpus import Corpus
from rca.lab.training.incidents import incidents
from rca.lab.training.tracking import metric_name
from rca.sources.labels import read_collection
from rca.workers import Workers

Progress = Callable[[str, int, int], None]

#: Name of the source that every run has; a collection has the name of its folder.
SIMULATED = "simulated"
#: Largest number of simulated test windows, the first ones of the corpus: intervals of 0.01 within minutes.
MAX_SIMULATED = 3000
#: Totals are about the first set; the others show the scores with less telemetry.
SIGNALS = tuple(SIGNAL_SETS)


def named(collections: Sequence[Path]) -> dict[str, Path]:
    """Collections by name.

    Raises
    ------
    InvalidInput
        If two collections have the same name in MLflow, or one has the name of the simulated source.
    """
    found: dict[str, Path] = {}
    taken = {SIMULATED}
    for folder in collections:
        name = folder.name or folder.resolve().name
        if metric_name(name) in taken:
            raise InvalidInput(
                f"collection {folder}: the name {name!r} is taken",
                hint="rename the folder: scores are stored under its name",
            )
        taken.add(metric_name(name))
        found[name] = folder
    return found


def held_out_rows(
    corpus: Corpus, bundle: Path, collections: Sequence[Path], workers: Workers, progress: Progress
) -> dict[str, list[JudgedRow]]:
    """Rows of the test part of every source, with every set of signals; sources without one are left out."""
    rows, *_ = evaluate_simulated(
        _seeds(corpus),
        [bundle],
        signals=SIGNALS,
        workers=workers,
        progress=partial(progress, "diagnosing held-out scenarios"),
    )
    found = {SIMULATED: rows}
    for name, folder in named(collections).items():
        held = [each.entry for each in incidents(read_collection(folder)) if each.part == "test"]
        if held:
            evaluation = evaluate_entries(
                held,
                EvaluationPlan(signals=SIGNALS, bundle=bundle),
                workers=workers,
                progress=partial(progress, "diagnosing held-out real windows"),
            )
            found[name] = evaluation.rows
    return found


def _seeds(corpus: Corpus) -> list[int]:
    held = zip(corpus.group, corpus.part, corpus.real, strict=True)
    found = [int(group.rsplit("-", 1)[1]) for group, part, real in held if part == "test" and not real]
    return found[:MAX_SIMULATED]


def with_all_signals(rows: Sequence[JudgedRow]) -> list[JudgedRow]:
    """Rows with all signals, one per window."""
    return [row for row in rows if row.signals == SIGNALS[0]]


def totals(rows: Sequence[JudgedRow]) -> dict[str, Any]:
    """Scores with all signals and their intervals: ``{score: {value, low, high, n}}``."""
    return rounded(summarise([row.judged for row in with_all_signals(rows)]))
