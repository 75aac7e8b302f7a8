"""``python -m benchmarks support COLLECTION...``: features of healthy jobs that no simulated healthy job has.

What a model never saw on a healthy job it may take for a fault, however small it is. Simulated healthy jobs
give every feature of a window a range; the table lists the features of the collections' healthy windows that
lie outside it, the most frequent first. Such a feature asks for a simulator that varies more, not for a
threshold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from rca.arrays import FloatArray
from rca.errors import RcaError
from rca.features import WINDOW_FEATURES, extract
from rca.telemetry.labels import read_collection
from rca.training.innocents import innocent_windows
from rca.training.run import DEFAULT_SEED

N_WINDOWS = 1500
LEAST_WINDOWS = 20
#: A feature's simulated range leaves out this share of the windows at each end.
LEFT_OUT = 0.002
SHOWN = 30


class Beyond(NamedTuple):
    """One feature and the windows that lie outside its simulated range."""

    feature: str
    low: float
    high: float
    outside: FloatArray


def beyond(simulated: FloatArray, real: FloatArray) -> list[Beyond]:
    """Features of healthy windows outside the range that simulated ones have, the most frequent first.

    Parameters
    ----------
    simulated, real : ndarray of shape (n, n_window_features)
        Of healthy windows; NaN where unknown.
    """
    found = []
    for name, usual, seen in zip(WINDOW_FEATURES, simulated.T, real.T, strict=True):
        known = usual[np.isfinite(usual)]
        # What no simulated job knows at all is outside wherever it is known.
        edges = np.quantile(known, (LEFT_OUT, 1 - LEFT_OUT)) if known.size else (np.inf, -np.inf)
        low, high = (float(edge) for edge in edges)
        # A hair above a bound that many windows share is no other value.
        slack = 1e-9 * max(1.0, abs(low), abs(high)) if known.size else 0.0
        outside = seen[(seen < low - slack) | (seen > high + slack)]
        if outside.size:
            found.append(Beyond(name, low, high, outside))
    return sorted(found, key=lambda each: -each.outside.size)


def healthy_windows(folders: Iterable[Path]) -> FloatArray:
    """Window features of the collections' healthy windows, shape (n, n_window_features)."""
    rows = [
        extract(entry.read_window()).window
        for folder in folders
        for entry in read_collection(folder)
        if entry.read_label().failure_mode == "healthy"
    ]
    return np.array(rows).reshape(-1, len(WINDOW_FEATURES))


def table(found: Sequence[Beyond], n: int) -> Table:
    """The first features, one per row."""
    shown = Table(title=f"features of {n:,} healthy windows outside the range of simulated healthy ones")
    for column in ("feature", "windows", "simulated", "least", "median", "most"):
        shown.add_column(column)
    for each in found[:SHOWN]:
        values = [f"{edge:.3g}" for edge in np.quantile(each.outside, (0.0, 0.5, 1.0))]
        usual = f"{each.low:.3g} to {each.high:.3g}" if each.low <= each.high else "never known"
        shown.add_row(each.feature, str(each.outside.size), usual, *values)
    return shown


def main(arguments: list[str]) -> int:
    """Simulate, compare and print."""
    given = _options(arguments)
    try:
        real = healthy_windows(given.collections)
    except RcaError as error:
        sys.stderr.write(f"support: {error}\n")
        return 2
    if not len(real):
        sys.stderr.write("support: no healthy window in the collections\n")
        return 2
    simulated = innocent_windows(
        given.windows, given.seed, processes=given.processes, cache=None, progress=_progress
    )
    Console(width=None if sys.stdout.isatty() else 120).print(table(beyond(simulated, real), len(real)))
    return 0


def _progress(done: int, total: int) -> None:
    if done % 250 == 0:
        sys.stderr.write(f"support: {done:,} of {total:,} healthy jobs simulated\n")
        sys.stderr.flush()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks support", description=__doc__)
    parser.add_argument("collections", nargs="+", type=Path, metavar="COLLECTION", help="folder of windows")
    parser.add_argument("--windows", type=_enough, default=N_WINDOWS, help="simulated healthy windows")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--processes", type=int, default=2, help="for the simulation")
    return parser.parse_args(arguments)


def _enough(text: str) -> int:
    value = int(text)
    if value < LEAST_WINDOWS:
        raise argparse.ArgumentTypeError(f"at least {LEAST_WINDOWS}: fewer have no range")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
