"""More healthy jobs, because false alarms are decided by what one healthy job in a hundred does.

A threshold that lets five of two thousand healthy windows alarm is the sixth highest of two thousand numbers:
another seed moves it by as much as a new feature does. So one half of these windows helps to choose the
thresholds, and no tree is fitted on it; the other half teaches head ``mode`` (docs/decisions/0025).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rca.arrays import FloatArray
from rca.features import WINDOW_FEATURES
from rca.simulation import sample_scenario, simulate
from rca.telemetry.labels import Label
from rca.training.corpus import Example, example
from rca.training.feature_cache import FeatureCache
from rca.training.simulated import kept_examples
from rca.training.split import scenario_group

#: One more healthy window for so many of the corpus, of which about a third are healthy.
PER_CORPUS_WINDOWS = 3
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
    rows: list[FloatArray] = []
    for each in kept_examples(
        "innocent", innocent_seeds(n, seed), _simulated, processes=processes, cache=cache
    ):
        rows.append(each.window)
        progress(len(rows), n)
    return np.array(rows).reshape(-1, len(WINDOW_FEATURES))


def halves(innocents: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Those that are learned from, and those to judge by; none changes sides with their number."""
    return innocents[::2], innocents[1::2]


def innocent_seeds(n: int, seed: int) -> list[int]:
    """Seeds of the scenarios; those of fewer come first among those of more."""
    drawn: list[int] = np.random.default_rng([seed, _STREAM]).integers(1 << 63, size=n).tolist()
    return drawn


def _simulated(seed: int) -> Example:
    labelled = simulate(sample_scenario(np.random.default_rng(seed), cause="healthy"))
    label = Label.model_validate(labelled.label)
    return example(labelled.window, label, group=scenario_group(seed), seed=seed)
