"""``python -m benchmarks exporters``: how often a machine that stands out is at fault, without any step.

Removes the steps of labelled windows and diagnoses the rest. The first table has the shares that
`rca.diagnosis.exporters_only.RIGHT` holds, from simulated and captured windows. The second table also scores
windows from outside, on which nothing was chosen.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.answers import DATA
from rca.classify.decision_table import VERY_LOUD
from rca.diagnosis.exporters_only import cause_of_resource, diagnose_exporters
from rca.diagnosis.result import ModelVersion
from rca.features.machine_outliers import MachineComparison, Outlier
from rca.features.resource_evidence import resource_names
from rca.lab.evaluation.tables import TextTable
from rca.lab.simulation.corpus import simulated_window
from rca.lab.testbed.pack import unpack
from rca.process import usable_cores
from rca.sources.labels import read_collection, read_label
from rca.sources.read import read_window
from rca.window.window import Window
from rca.workers import Workers

N_SIMULATED, FIRST_SEED = 400, 880_000_000
CHOSEN_ON = ("testbed/captures", "testbed/second", "testbed/third", "testbed/fourth")
SCORED_ON = ("outsiders",)
_MODEL = ModelVersion(name="none", version="0", sha256="0" * 64)


class Scored(NamedTuple):
    """One window without its steps: the loudest outlier of each resource, and the score of the answer.

    An outlier is (resource, very loud, right).
    """

    part: str
    mode: str
    answered: str
    outliers: tuple[tuple[str, bool, bool], ...]
    ranks_right: bool
    cause_right: bool


def main(arguments: list[str]) -> int:
    """Score every window without its steps, and print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks exporters", description=__doc__)
    parser.add_argument("--simulated", type=int, default=N_SIMULATED, help="simulated windows")
    parser.add_argument("--processes", type=int, default=usable_cores(), help="[default: one per core]")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch, Workers(given.processes) as workers:
        sources = [*_shipped(Path(scratch)), *_simulated(given.simulated)]
        scored = [each for each in workers.map(_scored, sources, chunk=8) if each is not None]
    print(_reliability([each for each in scored if each.part != "scored"]).to_markdown())
    print(_scores(scored).to_markdown())
    return 0


def _shipped(scratch: Path) -> Iterator[tuple[str, str]]:
    for part, collections in (("captured", CHOSEN_ON), ("scored", SCORED_ON)):
        for collection in collections:
            unpack(DATA / collection, scratch / collection, lambda *_: None)
            for entry in read_collection(scratch / collection):
                yield part, str(entry.path)


def _simulated(n_windows: int) -> Iterator[tuple[str, str]]:
    return (("simulated", str(seed)) for seed in range(FIRST_SEED, FIRST_SEED + n_windows))


def _scored(source: tuple[str, str]) -> Scored | None:
    """Score one window; None if it has no metrics."""
    part, place = source
    window, label = (
        simulated_window(int(place)) if part == "simulated" else (read_window(place), read_label(place))
    )
    if window.metrics.num_rows == 0:
        return None
    bare = Window.from_tables(window.job, metrics=window.metrics, events=window.events)
    answer = diagnose_exporters(bare, _MODEL)
    faults = [(cause.cause, set(cause.ranks)) for cause in label.causes]
    # The loudest of each resource: they are in this order.
    loudest: dict[str, Outlier] = {}
    for each in MachineComparison.from_window(bare).outliers:
        if each.kind == "loud":
            loudest.setdefault(each.resource, each)
    outliers = tuple(
        (name, each.score >= VERY_LOUD, _is_right(each, faults)) for name, each in loudest.items()
    )
    first = answer.stragglers[0].ranks if answer.stragglers else []
    cause = answer.causes[0] if answer.causes else None
    return Scored(
        part=part,
        mode=label.failure_mode,
        answered=answer.failure_mode,
        outliers=outliers,
        ranks_right=any(set(first) == ranks for _, ranks in faults),
        cause_right=cause is not None and any((cause.cause, set(cause.ranks)) == fault for fault in faults),
    )


def _is_right(outlier: Outlier, faults: list[tuple[str, set[int]]]) -> bool:
    """Whether some of the ranks are at fault with a cause that the resource shows."""
    return any(
        cause_of_resource(outlier.resource) == cause and ranks & set(outlier.ranks) for cause, ranks in faults
    )


def _reliability(scored: Sequence[Scored]) -> TextTable:
    """For every resource: windows whose loudest outlier is at fault, of all, and Laplace's probability."""
    counted: Counter[tuple[str, bool, bool]] = Counter(each for one in scored for each in one.outliers)
    rows = []
    for resource in resource_names():
        right = [counted[resource, loud, True] for loud in (False, True)]
        total = [right[loud] + counted[resource, bool(loud), False] for loud in (0, 1)]
        chances = [_laplace(*pair) for pair in zip(right, total, strict=True)]
        # Louder evidence is never less certain: both kinds share one probability where it would be.
        if chances[0] > chances[1]:
            chances = [_laplace(sum(right), sum(total))] * 2
        cells = zip(right, total, chances, strict=True)
        rows.append((resource, *(cell for r, n, p in cells for cell in (f"{r} of {n}", f"{p:.2f}"))))
    header = ("resource", "loud", "probability", "very loud", "probability")
    return TextTable("windows whose loudest outlier is at fault", header, tuple(rows))


def _laplace(right: int, total: int) -> float:
    return (right + 1) / (total + 2)


def _scores(scored: Sequence[Scored]) -> TextTable:
    rows = []
    for part, mode in sorted({(each.part, each.mode) for each in scored}):
        chosen = [each for each in scored if (each.part, each.mode) == (part, mode)]
        answers = Counter(each.answered for each in chosen)
        rows.append(
            (
                part,
                mode,
                str(len(chosen)),
                *(str(answers[name]) for name in ("healthy", "fail_slow", "fail_stop")),
                str(sum(each.ranks_right for each in chosen)),
                str(sum(each.cause_right for each in chosen)),
            )
        )
    header = (
        "windows",
        "truth",
        "n",
        "healthy",
        "fail-slow",
        "fail-stop",
        "first ranks exact",
        "first cause exact",
    )
    return TextTable("likeliest answers without steps (each is marked as not certain)", header, tuple(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
