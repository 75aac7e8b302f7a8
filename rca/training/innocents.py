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
from rca.simulation import sample_scenario, simulate
from rca.simulation.seeds import for_each_scenario
from rca.telemetry.labels import Label
from rca.training.corpus import Example, example
from rca.training.feature_cache import FeatureCache, cache_key
from rca.training.split import scenario_group

#: One more healthy window for so many of the corpus, of which about a third are healthy.
PER_CORPUS_WINDOWS = 3
#: Scenarios per file of the cache.
BATCH = 256
#: Keeps the seeds apart from those of the corpus, which are spawned from the training's seed alone.
_STREAM = 1


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
    seeds = innocent_seeds(n, seed)
    batches = [tuple(seeds[begin : begin + BATCH]) for begin in range(0, n, BATCH)]
    keys = ["" if cache is None else cache_key("innocent", *batch) for batch in batches]
    held = [None if cache is None else cache.read(key) for key in keys]
    missing = [each for batch, known in zip(batches, held, strict=True) if known is None for each in batch]
    # One stream for all that is missing: a pool per batch would start its workers over and over.
    fresh = for_each_scenario(_simulated, missing, processes=processes)
    rows: list[FloatArray] = []
    for batch, key, known in zip(batches, keys, held, strict=True):
        made = list(islice(fresh, len(batch))) if known is None else known
        if known is None and cache is not None:
            cache.write(key, made)
        rows += [each.window for each in made]
        progress(len(rows), n)
    return np.array(rows).reshape(-1, len(WINDOW_FEATURES))


def innocent_seeds(n: int, seed: int) -> list[int]:
    """Seeds of the scenarios; those of fewer come first among those of more."""
    drawn: list[int] = np.random.default_rng([seed, _STREAM]).integers(1 << 63, size=n).tolist()
    return drawn


def _simulated(seed: int) -> Example:
    labelled = simulate(sample_scenario(np.random.default_rng(seed), cause="healthy"))
    label = Label.model_validate(labelled.label)
    return example(labelled.window, label, group=scenario_group(seed), seed=seed)
