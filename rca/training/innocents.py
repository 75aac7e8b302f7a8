"""More healthy jobs, simulated for one purpose: to choose the alarm thresholds where false alarms are rare.

A threshold that lets five of two thousand healthy windows alarm is the sixth highest of two thousand numbers:
another seed moves it by as much as a new feature does. No tree is fitted on these windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import numpy as np

from rca.robust import FloatArray
from rca.simulation.sampling import sample_scenario
from rca.simulation.seeds import for_each_scenario, simulated_window
from rca.training.corpus import Example, example
from rca.training.feature_cache import FeatureCache, cache_key
from rca.training.split import scenario_group

#: One more healthy window for so many of the corpus.
PER_CORPUS_WINDOWS = 3
#: Scenarios per file of the cache.
BATCH = 512
#: Keeps the seeds apart from those of the corpus, which are spawned from the training's seed alone.
_STREAM = 1


def innocent_seeds(n: int, seed: int) -> list[int]:
    """Seeds of the first `n` scenarios of their own stream in which nothing was done to the job."""
    return list(islice(_healthy_seeds(seed), n))


def innocent_windows(
    n: int,
    seed: int,
    *,
    processes: int,
    cache: FeatureCache | None,
    progress: Callable[[int, int], None],
) -> FloatArray:
    """Window features of healthy scenarios that are in no corpus, shape (n, n_window_features).

    Parameters
    ----------
    n, seed : int
    processes, cache
        Without influence on the result.
    progress : callable
        ``(done, total)``.
    """
    seeds, rows = innocent_seeds(n, seed), []
    for begin in range(0, n, BATCH):
        batch = seeds[begin : begin + BATCH]
        make = partial(_made, batch, processes)
        held = make() if cache is None else cache.remember(cache_key("innocent", *batch), make)
        rows += [each.window for each in held]
        progress(len(rows), n)
    return np.stack(rows)


def _made(seeds: list[int], processes: int) -> list[Example]:
    return list(for_each_scenario(_simulated, seeds, processes=processes))


def _simulated(seed: int) -> Example:
    return example(*simulated_window(seed), group=scenario_group(seed), seed=seed)


def _healthy_seeds(seed: int) -> Iterator[int]:
    drawn = np.random.default_rng([seed, _STREAM])
    while True:
        candidate = int(drawn.integers(1 << 63))
        if not sample_scenario(np.random.default_rng(candidate)).faults:
            yield candidate
