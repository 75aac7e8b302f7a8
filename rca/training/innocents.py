"""More healthy jobs, simulated for one purpose: to choose the alarm thresholds where false alarms are rare.

A threshold that lets five of two thousand healthy windows alarm is the sixth highest of two thousand numbers:
another seed moves it by as much as a new feature does. No tree is fitted on these windows.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np

from rca.features import WINDOW_FEATURES
from rca.robust import FloatArray
from rca.simulation.sampling import sample_scenario
from rca.simulation.seeds import for_each_scenario, simulated_window
from rca.training.corpus import Example, example
from rca.training.feature_cache import FeatureCache, cache_key
from rca.training.split import scenario_group

#: Scenarios per file of the cache.
BATCH = 1024
#: Keeps the seeds apart from those of the corpus, which are spawned from the training's seed alone.
_STREAM = 1


def innocent_windows(
    n_scenarios: int,
    seed: int,
    *,
    processes: int,
    cache: FeatureCache | None,
    progress: Callable[[int, int], None],
) -> FloatArray:
    """Window features of the scenarios of another stream in which nothing was done to the job.

    Parameters
    ----------
    n_scenarios, seed : int
        How many scenarios are drawn; something over a quarter of them are healthy.
    processes, cache
        Without influence on the result.
    progress : callable
        ``(done, total)`` scenarios.

    Returns
    -------
    ndarray of shape (n_healthy, n_window_features)
    """
    seeds = candidate_seeds(n_scenarios, seed)
    batches = [tuple(seeds[begin : begin + BATCH]) for begin in range(0, n_scenarios, BATCH)]
    keys = ["" if cache is None else cache_key("innocent", *batch) for batch in batches]
    held = [None if cache is None else cache.read(key) for key in keys]
    missing = [each for batch, known in zip(batches, held, strict=True) if known is None for each in batch]
    # One stream for all that is missing: a pool per batch would start its workers over and over.
    fresh = for_each_scenario(_if_healthy, missing, processes=processes)
    rows: list[FloatArray] = []
    done = 0
    for batch, key, known in zip(batches, keys, held, strict=True):
        made = known
        if made is None:
            made = [each for each in islice(fresh, len(batch)) if each is not None]
            if cache is not None:
                cache.write(key, made)
        rows += [each.window for each in made]
        done += len(batch)
        progress(done, n_scenarios)
    return np.array(rows).reshape(-1, len(WINDOW_FEATURES))


def candidate_seeds(n_scenarios: int, seed: int) -> list[int]:
    """Seeds of the scenarios that are drawn; those of fewer come first among those of more."""
    drawn: list[int] = np.random.default_rng([seed, _STREAM]).integers(1 << 63, size=n_scenarios).tolist()
    return drawn


def _if_healthy(seed: int) -> Example | None:
    if sample_scenario(np.random.default_rng(seed)).faults:
        return None
    return example(*simulated_window(seed), group=scenario_group(seed), seed=seed)
