"""Simulated scenarios, diagnosed end to end or made examples of, without writing windows to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from os import PathLike

from rca.diagnosis import Bundle, diagnose
from rca.evaluation.baselines_forest import ForestExample, forest_example
from rca.evaluation.scores import Judged, judge
from rca.simulation.seeds import for_each_scenario, simulated_window

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
    window, label = simulated_window(seed)
    return judge(diagnose(window, bundle=_worker_bundle), label)


def simulated_forest_examples(seeds: Iterable[int], *, processes: int) -> Iterator[ForestExample]:
    """Simulate the scenarios of the seeds for fitting; `processes` has no influence on the rows."""
    return for_each_scenario(_forest_example, seeds, processes=processes)


def _forest_example(seed: int) -> ForestExample:
    return forest_example(*simulated_window(seed))
