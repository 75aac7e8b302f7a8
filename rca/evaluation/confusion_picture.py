"""True against answered first cause as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

import numpy as np

from rca.arrays import FloatArray
from rca.errors import MissingExtra
from rca.evaluation.rows import HEALTHY, in_order
from rca.telemetry.causes import CAUSES

#: The catalogue's order between answers that name no cause.
_ORDER = (HEALTHY, *CAUSES, "unknown", "fail_slow", "fail_stop")


def confusion_matrix(counts: Mapping[str, Mapping[str, int]]) -> tuple[list[str], list[str], FloatArray]:
    """Counts as an array, rows (true) and columns (answered) in the catalogue's order.

    Returns
    -------
    true, answered : list of str
        Row and column names; the diagonal leads as far as both hold the same names.
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
    # Straight from Figure, without pyplot: no global state and no display.
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
