"""Simulated scenarios as training data, in parallel and with a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np

from rca.lab.simulation.corpus import TRAINED_VERSION, for_each_scenario, simulated_window
from rca.lab.simulation.scenario import CorpusVersion
from rca.lab.training.corpus import Example, example
from rca.lab.training.feature_cache import FeatureCache, cache_key
from rca.lab.training.split import scenario_group
from rca.workers import Workers

#: Scenarios per file of the cache; an interrupted run loses at most one file.
BATCH = 256


def scenario_seeds(n_windows: int, seed: int) -> list[int]:
    """Seeds of a corpus's scenarios; those of a smaller corpus come first in a larger one."""
    children = np.random.SeedSequence(seed).spawn(n_windows)
    return [int(child.generate_state(1, np.uint64)[0] >> np.uint64(1)) for child in children]


def simulated_examples(
    n_windows: int,
    seed: int,
    *,
    workers: Workers,
    cache: FeatureCache | None = None,
    version: CorpusVersion = TRAINED_VERSION,
) -> Iterator[Example]:
    """Simulate scenarios and extract their features; the result depends on number, seed and version only.

    Parameters
    ----------
    workers : Workers
        Without influence on the result.
    cache : FeatureCache, optional
        Read first, and completed; without influence on the result.
    version : {1, 2}
        Of the corpus. Windows of version 2 that would have no steps get them: features need steps.
    """
    seeds, kind = scenario_seeds(n_windows, seed), "simulated" if version == 1 else f"simulated {version}"
    make = _simulated if version == TRAINED_VERSION else partial(_simulated, version=version)
    yield from kept_examples(kind, seeds, make, workers=workers, cache=cache)


def kept_examples(
    kind: str,
    seeds: Sequence[int],
    make: Callable[[int], Example],
    *,
    workers: Workers,
    cache: FeatureCache | None,
) -> Iterator[Example]:
    """Examples of seeds in their order, from the cache or made and then kept.

    Parameters
    ----------
    kind : str
        Name for the cache: the kind of example that `make` makes.
    make : callable
        Picklable; from a seed to its example.
    workers, cache
        Without influence on the result.
    """
    batches = [tuple(seeds[begin : begin + BATCH]) for begin in range(0, len(seeds), BATCH)]
    keys = ["" if cache is None else cache_key(kind, *batch) for batch in batches]
    held = [None if cache is None else cache.read(key) for key in keys]
    missing = [each for batch, known in zip(batches, held, strict=True) if known is None for each in batch]
    # One stream for all missing seeds: a pool per batch would start new workers each time.
    fresh = for_each_scenario(make, missing, workers=workers)
    for batch, key, known in zip(batches, keys, held, strict=True):
        if known is not None:
            yield from known
            continue
        made = []
        for each in islice(fresh, len(batch)):
            made.append(each)
            yield each
        if cache is not None:
            cache.write(key, made)


def _simulated(seed: int, version: CorpusVersion = TRAINED_VERSION) -> Example:
    window, label = simulated_window(seed, version, with_steps=True)
    return example(window, label, group=scenario_group(seed), seed=seed)
