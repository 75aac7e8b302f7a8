"""Diagnose a labelled collection and score the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from os import PathLike
from typing import Any

from rca.diagnosis import Bundle, Diagnosis, diagnose
from rca.simulation import sample_scenario, simulate
from rca.telemetry.labels import Label, read_collection
from rca.training.scores import Judged, judge, summarise

_worker_bundle: Bundle | None = None


@dataclass(frozen=True)
class Case:
    """One evaluated window."""

    id: str
    label: Label
    diagnosis: Diagnosis
    judged: Judged


@dataclass(frozen=True)
class Evaluation:
    """All cases of a collection and their summary."""

    cases: list[Case]

    def summary(self) -> dict[str, dict[str, float]]:
        """Scores with intervals."""
        return summarise([case.judged for case in self.cases])

    def confusion(self) -> dict[str, dict[str, int]]:
        """Windows by true (outer) and answered (inner) first cause; "healthy" stands for none."""
        table: dict[str, dict[str, int]] = {}
        for case in self.cases:
            true = case.label.causes[0].cause if case.label.causes else "healthy"
            answer = case.diagnosis.causes[0].cause if case.diagnosis.causes else case.diagnosis.failure_mode
            row = table.setdefault(true, {})
            row[answer] = row.get(answer, 0) + 1
        return table


def evaluate_collection(
    path: str | PathLike[str],
    bundle: Bundle | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Diagnose every labelled window of a collection folder."""
    entries = list(read_collection(path))
    cases = []
    for position, entry in enumerate(entries, start=1):
        window, label = entry.read_window(), entry.read_label()
        diagnosis = diagnose(window, bundle=bundle)
        cases.append(Case(entry.id, label, diagnosis, judge(diagnosis, label)))
        progress(position, len(entries))
    return Evaluation(cases)


def evaluate_simulated(
    seeds: Iterable[int],
    bundle_path: str | PathLike[str],
    *,
    processes: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Judged]:
    """Simulate the scenarios of the seeds anew, diagnose them end to end, judge the answers."""
    todo = list(seeds)
    found = []
    with ProcessPoolExecutor(processes, initializer=_load, initargs=(str(bundle_path),)) as pool:
        for position, judged in enumerate(pool.map(_judge_seed, todo, chunksize=8), start=1):
            found.append(judged)
            progress(position, len(todo))
    return found


def _load(path: str) -> None:
    global _worker_bundle
    _worker_bundle = Bundle.load(path)


def _judge_seed(seed: int) -> Judged:
    import numpy as np

    labelled = simulate(sample_scenario(np.random.default_rng(seed)))
    return judge(diagnose(labelled.window, bundle=_worker_bundle), Label.model_validate(labelled.label))


def rounded(summary: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The summary with four decimals, for people and for tracked parameters."""
    return {name: {key: round(value, 4) for key, value in row.items()} for name, row in summary.items()}
