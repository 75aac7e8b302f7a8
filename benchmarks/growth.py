"""How the time of a diagnosis grows with ranks, steps and metrics: measured, fitted and drawn.

`benchmarks.diagnosis --growth` runs it. Of every window the fastest of several runs counts, which a busy
machine disturbs least. A straight line through the times of one dimension shows the fixed cost, and how far
the times are from linear. The exponent of a power of the size has to be 1 or less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.windows import Shape

#: The window whose size changes in one dimension at a time, and the sizes.
USUAL = Shape(ranks=512, steps=100, metrics=20)
SIZES = {
    "ranks": (256, 512, 1024, 2048, 4096),
    "steps": (100, 200, 400, 800, 1600),
    "metrics": (4, 8, 12, 16, 20),
}
#: Where metrics grow, their samples are most of the window.
OF_METRICS = Shape(ranks=512, steps=20, samples=100)


@dataclass(frozen=True)
class Growth:
    """Times over one dimension, and what was fitted.

    Attributes
    ----------
    sizes : list of int
    seconds : list of float
        Fastest run of each size.
    fixed, each : float, seconds
        Intercept and slope of the straight line with the least relative error.
    off_line : float
        Largest distance of a time from the line, as a share of the line.
    exponent : float
        Of the power of the size that fits best.
    """

    dimension: str
    sizes: list[int]
    seconds: list[float]
    fixed: float
    each: float
    off_line: float
    exponent: float

    @classmethod
    def of(cls, dimension: str, sizes: Iterable[int], seconds: Iterable[float]) -> Growth:
        """Fit a line and a power to the times."""
        size, time = np.array([*sizes], dtype=float), np.array([*seconds])
        each, fixed = np.polyfit(size, time, 1, w=1 / time)
        line = fixed + each * size
        exponent = np.polyfit(np.log(size), np.log(time), 1)[0]
        off = float(np.max(np.abs(time / line - 1)))
        whole = size.astype(int).tolist()
        return cls(dimension, whole, time.tolist(), float(fixed), float(each), off, float(exponent))


def shapes(dimension: str, largest: int) -> list[Shape]:
    """The windows of one dimension, up to a size."""
    usual = OF_METRICS if dimension == "metrics" else USUAL
    changes: list[dict[str, Any]] = [{dimension: size} for size in SIZES[dimension] if size <= largest]
    return [replace(usual, **change) for change in changes]


def measured(seconds_of: Callable[[Shape], float], largest: dict[str, int]) -> list[Growth]:
    """Every dimension, with a function that measures one window."""
    found = []
    for dimension in SIZES:
        windows = shapes(dimension, largest[dimension])
        sizes = [getattr(shape, dimension) for shape in windows]
        found.append(Growth.of(dimension, sizes, [seconds_of(shape) for shape in windows]))
    return found


def render(found: list[Growth], console: Console) -> None:
    """A table of the times and of the fits."""
    table = Table(title="Growth of a diagnosis in process", title_justify="left")
    for name in ("dimension", "sizes", "ms", "fixed ms", "ms for each", "off the line", "exponent"):
        table.add_column(name)
    for each in found:
        table.add_row(
            each.dimension,
            ", ".join(f"{size:,}" for size in each.sizes),
            ", ".join(f"{seconds * 1e3:,.0f}" for seconds in each.seconds),
            f"{each.fixed * 1e3:,.0f}",
            f"{each.each * 1e3:.3g}",
            f"{each.off_line:.0%}",
            f"{each.exponent:.2f}",
        )
    console.print(table)


def draw(found: list[Growth], path: Path) -> None:
    """The times as points beside the fitted lines; the ending of the name chooses PNG or SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(found), 3.2), layout="constrained")
    for axes, each in zip(figure.subplots(1, len(found)), found, strict=True):
        size = np.array([0, each.sizes[-1]])
        axes.plot(size, (each.fixed + each.each * size) * 1e3, color="0.6", label="straight line")
        axes.plot(each.sizes, np.array(each.seconds) * 1e3, "ko", label="fastest run")
        axes.set(xlabel=each.dimension, ylabel="milliseconds", ylim=(0, None))
        axes.set_title(f"exponent {each.exponent:.2f}", fontsize="medium")
        axes.legend(frameon=False)
    figure.savefig(path)
