"""Heat map of exact worker slowdowns: data rank by stage."""

from __future__ import annotations

from os import PathLike

import numpy as np

from rca.arrays import FloatArray
from rca.errors import MissingExtra, SourceError
from rca.whatif.result import WhatIf


def worker_grid(result: WhatIf) -> FloatArray:
    """Largest exact slowdown of every (data rank, stage).

    Returns
    -------
    ndarray of shape (n_data, n_stages)
        NaN where no rank was traced.
    """
    exact = result.workers.slowdown(result.ideal)
    _, data_rank = np.unique(result.workers.data_rank, return_inverse=True)
    grid = np.full((int(data_rank.max()) + 1, int(result.workers.stage.max()) + 1), np.nan)
    place = (data_rank, result.workers.stage)
    np.fmax.at(grid, place, exact)
    return grid


def write_heatmap(result: WhatIf, path: str | PathLike[str]) -> None:
    """Draw the grid into an image file; the type follows the suffix.

    Raises
    ------
    MissingExtra
        If matplotlib is not installed.
    SourceError
        If the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise MissingExtra(
            "a heat map needs matplotlib", hint="pip install 'straggler-rca[train]'"
        ) from error
    grid = worker_grid(result)
    n_data, n_stages = grid.shape
    # Straight from Figure, without pyplot: no global state and no display.
    figure = Figure(
        figsize=(2.5 + 0.5 * min(n_stages, 24), 1.8 + 0.3 * min(n_data, 40)), layout="constrained"
    )
    axes = figure.add_subplot()
    image = axes.imshow(grid, aspect="auto", cmap="YlOrRd", vmin=1.0, vmax=max(1.05, float(np.nanmax(grid))))
    axes.set(
        xlabel="pipeline stage",
        ylabel="data rank",
        title=f"slowdown by one worker alone, S = {result.slowdown:.3f}",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, label="S alone")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot write {path}: {error}") from error
