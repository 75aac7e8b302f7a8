"""Input of each step, as trainers count it, and whether longer steps had more of it."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.slow_segment import segment_mean
from rca.features.work import Work
from rca.robust import nan_max, nan_mean, nan_median, row_correlation

#: Counts of input, in the order in which they predict computing time.
LOAD_COUNTS = ("sum_squared_sequence_length", "tokens", "samples")


def counted_load(work: Work) -> FloatArray | None:
    """Input of every rank and step, shape (n_ranks, n_steps), by the first of `LOAD_COUNTS`; None without."""
    return next((work.load[name] for name in LOAD_COUNTS if name in work.load), None)


def load_excess(work: Work, inside: BoolArray) -> FloatArray:
    """Each rank's input above the median rank's, relative, in some steps; NaN if no input is counted.

    Parameters
    ----------
    inside : ndarray of shape (n_steps,), bool

    Returns
    -------
    ndarray of shape (n_ranks,), ratio less one
    """
    load = counted_load(work)
    if load is None:
        return np.full(work.own.shape[0], np.nan)
    mean = segment_mean(load, inside)
    usual = nan_median(mean[:, None])[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(usual > 0, mean / usual - 1.0, np.nan))


def load_features(work: Work, inside: BoolArray, slow_segment_ratio: float) -> dict[str, float]:
    """How unequal input is between ranks, and whether the slow segment has more of it.

    Parameters
    ----------
    inside : ndarray of shape (n_steps,), bool
        Steps of the slow segment.
    slow_segment_ratio : float
        Step time inside over outside.
    """
    load, growth = counted_load(work), _growth(work, inside)
    usual = np.full((1, work.steps.size), np.nan) if load is None else nan_median(load)[None]
    return {
        "load_imbalance": np.nan if load is None else _imbalance(load),
        "load_growth": growth,
        # Steps without any input, as in an evaluation, have no time per input.
        "slow_segment_ratio_per_load": slow_segment_ratio / (1.0 + growth) if growth > -1.0 else np.nan,
        "load_step_correlation": float(row_correlation(work.job_step[None], usual)[0]),
    }


def _growth(work: Work, inside: BoolArray) -> float:
    """Input of the median rank inside the segment over outside, less one; NaN if unknown.

    Of tokens and samples the larger growth counts, because samples may become longer. Squared lengths count
    only without these, because little of the computing time grows with them.
    """
    names: list[str] = [name for name in ("tokens", "samples") if name in work.load] or list(work.load)
    usual = [nan_median(work.load[name])[None] for name in names]
    with np.errstate(invalid="ignore", divide="ignore"):
        grown = [segment_mean(each, inside) / segment_mean(each, ~inside) - 1.0 for each in usual]
    return max((float(each[0]) for each in grown if np.isfinite(each[0])), default=np.nan)


def _imbalance(load: FloatArray) -> float:
    """Mean over the steps of the largest rank's input above the median rank's, relative."""
    usual = nan_median(load)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = (nan_max(load) - usual) / np.where(usual > 0, usual, np.nan)
    return float(nan_mean(spread[:, None])[0])
