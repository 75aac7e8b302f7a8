"""Confusion matrices and reliability diagrams, as arrays and as pictures.

Pictures come straight from matplotlib's ``Figure``, without pyplot: no global state and no display.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import MissingExtra
from rca.lab.evaluation.intervals import BINS, confidence_bin
from rca.lab.evaluation.judged_rows import HEALTHY, in_order
from rca.lab.evaluation.scores import Judged
from rca.window.causes import CAUSES

#: The catalogue's order, with answers without a cause before and after it.
_ORDER = (HEALTHY, *CAUSES, "unknown", "fail_slow", "fail_stop")
#: Standard normal quantile of a two-sided 95 % interval.
Z = 1.959964


def confusion_matrix(counts: Mapping[str, Mapping[str, int]]) -> tuple[list[str], list[str], FloatArray]:
    """Counts as an array, rows (true) and columns (answered) in the catalogue's order.

    Returns
    -------
    true, answered : list of str
        Row and column names.
    matrix : ndarray of shape (n_true, n_answered), windows
    """
    every = {*counts, *(name for row in counts.values() for name in row)}
    answered = in_order(every, _ORDER)
    true = [name for name in answered if name in counts]
    matrix = np.array([[counts[row].get(column, 0) for column in answered] for row in true], dtype=float)
    return true, answered, matrix


def write_confusion(counts: Mapping[str, Mapping[str, int]], path: str | PathLike[str]) -> None:
    """Draw shares of each true cause, with the counts written into the cells.

    Raises
    ------
    MissingExtra
        Without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            "a confusion picture needs matplotlib", hint="pip install 'straggler-rca[train]'"
        ) from error
    true, answered, matrix = confusion_matrix(counts)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    figure = Figure(figsize=(3.4 + 0.42 * len(answered), 2.4 + 0.32 * len(true)), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(answered)), answered, rotation=60, ha="right")
    axes.set_yticks(range(len(true)), true)
    axes.set(xlabel="answered first cause", ylabel="true first cause", title="windows")
    for row, column in zip(*np.nonzero(matrix), strict=True):
        shade = "white" if share[row, column] > 0.5 else "black"
        axes.text(column, row, f"{matrix[row, column]:.0f}", ha="center", va="center", color=shade)
    figure.savefig(path, dpi=120)


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
    """Draw one curve per name, with intervals, and the diagonal of perfect calibration.

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
        # Rounding can put an end of an interval inside its point.
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
