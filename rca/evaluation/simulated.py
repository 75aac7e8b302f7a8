"""Simulated scenarios diagnosed end to end, without writing windows to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from os import PathLike

import numpy as np

from rca.diagnosis import Bundle, diagnose
from rca.evaluation.scores import Judged, judge
from rca.simulation import sample_scenario, simulate
from rca.telemetry.labels import Label

_worker_bundle: Bundle | None = None


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
    labelled = simulate(sample_scenario(np.random.default_rng(seed)))
    return judge(diagnose(labelled.window, bundle=_worker_bundle), Label.model_validate(labelled.label))
