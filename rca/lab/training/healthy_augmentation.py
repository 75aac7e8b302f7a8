"""Additional healthy windows, because rare healthy windows decide the false-alarm rate.

An alarm threshold that lets 5 of 2,000 healthy windows through is a single extreme value and varies with the
seed. One half of these windows is used to choose the thresholds only; head ``mode`` is fitted on the other
half (docs/decisions/0025).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rca.arrays import FloatArray
from rca.features import WINDOW_FEATURES
from rca.lab.simulation.corpus import TRAINED_VERSION, sampled, simulate_with_steps
from rca.lab.training.corpus import Example, example
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.simulated import kept_examples
from rca.lab.training.split import scenario_group
from rca.sources.labels import WindowLabel
from rca.workers import Workers, counted

#: One additional healthy window for so many windows of the corpus.
PER_CORPUS_WINDOWS = 3
#: Second seed word, so that these scenarios differ from those of the corpus.
_STREAM = 1


def healthy_windows(
    n: int,
    seed: int,
    *,
    workers: Workers,
    cache: FeatureCache | None,
    progress: Callable[[int, int], None],
) -> FloatArray:
    """Window features of healthy scenarios that are in no corpus, shape (n, n_window_features).

    Parameters
    ----------
    workers, cache
        Without influence on the result.
    progress : callable
        ``(done, total)``.
    """
    made = kept_examples("healthy", healthy_seeds(n, seed), _simulated, workers=workers, cache=cache)
    rows = [each.window for each in counted(made, n, progress)]
    return np.array(rows).reshape(-1, len(WINDOW_FEATURES))


def halves(healthy: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Windows to fit on, and windows to choose thresholds by; a larger number of windows keeps the halves."""
    return healthy[::2], healthy[1::2]


def healthy_seeds(n: int, seed: int) -> list[int]:
    """Seeds of the scenarios; a larger number begins with the same seeds."""
    drawn: list[int] = np.random.default_rng([seed, _STREAM]).integers(1 << 63, size=n).tolist()
    return drawn


def _simulated(seed: int) -> Example:
    scenario = sampled(np.random.default_rng(seed), TRAINED_VERSION, cause="healthy")
    labelled = simulate_with_steps(scenario)
    label = WindowLabel.model_validate(labelled.label)
    return example(labelled.window, label, group=scenario_group(seed), seed=seed)
