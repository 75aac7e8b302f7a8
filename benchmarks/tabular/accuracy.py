"""How often a ranking names the right column among its first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from benchmarks.tabular.cases import Case

#: Depths of Avg@5.
DEPTHS = (1, 2, 3, 4, 5)
ROUNDS = 1000


def hits(case: Case, ranking: Sequence[Hashable]) -> np.ndarray:
    """Whether a right column is among the first 1, 2, ... 5."""
    return np.array([bool(case.causes & set(ranking[:depth])) for depth in DEPTHS], dtype=float)


def with_interval(values: np.ndarray) -> str:
    """Mean and its 95 % percentile-bootstrap interval over cases."""
    draws = np.random.default_rng(0).integers(0, values.size, (ROUNDS, values.size))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return f"{values.mean():.2f} [{low:.2f}, {high:.2f}]"
