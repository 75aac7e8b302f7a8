"""How often the answer is right beside how sure it was: the reliability diagram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import MissingExtra
from rca.evaluation.intervals import BINS, confidence_bin
from rca.evaluation.scores import Judged

#: Standard normal quantile of a two-sided 95 % interval.
Z = 1.959964


class ReliabilityBins(NamedTuple):
    """Occupied confidence bins, all of shape (n_bins,).

    Attributes
    ----------
    confidence : ndarray
        Mean probability given to the answered failure mode.
    accuracy, low, high : ndarray
        Share of right answers with its 95 % Wilson interval.
    n : ndarray of int, windows
    """

    confidence: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray
    n: IntArray


def reliability(confidence: FloatArray, right: FloatArray, bins: int = BINS) -> ReliabilityBins:
    """Confidence and accuracy over equal-width bins; windows without a confidence are left out.

    References
    ----------
    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    known = np.isfinite(confidence)
    confidence, right = confidence[known], right[known]
    index = confidence_bin(confidence, bins)
    n = np.bincount(index, minlength=bins)
    held = n > 0
    count = n[held]
    accuracy = np.bincount(index, right, minlength=bins)[held] / count
    mean = np.bincount(index, confidence, minlength=bins)[held] / count
    spread = 1 + Z**2 / count
    centre = (accuracy + Z**2 / (2 * count)) / spread
    half = Z * np.sqrt(accuracy * (1 - accuracy) / count + Z**2 / (4 * count**2)) / spread
    return ReliabilityBins(mean, accuracy, centre - half, centre + half, count)


def reliability_of(judged: Sequence[Judged]) -> ReliabilityBins:
    """`reliability` of judged answers' failure modes."""
    return reliability(
        np.array([each.confidence for each in judged], dtype=float),
        np.array([each.mode_right for each in judged], dtype=float),
    )


def write_calibration(curves: Mapping[str, ReliabilityBins], path: str | PathLike[str]) -> None:
    """Draw one curve per name, with intervals, beside the diagonal of perfect calibration.

    Raises
    ------
    MissingExtra
        Without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            "a calibration picture needs matplotlib", hint="pip install 'straggler-rca[train]'"
        ) from error
    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="perfect")
    for name, curve in curves.items():
        # Rounding can put an end a hair inside the point it belongs to.
        ends = np.maximum([curve.accuracy - curve.low, curve.high - curve.accuracy], 0.0)
        label = f"{name} ({curve.n.sum():,} windows)"
        axes.errorbar(curve.confidence, curve.accuracy, yerr=ends, marker="o", capsize=3, label=label)
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1.02),
        xlabel="probability given to the answered failure mode",
        ylabel="share of right answers",
    )
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=120)
