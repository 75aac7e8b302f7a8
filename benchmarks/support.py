"""``python -m benchmarks support COLLECTION...``: features of healthy jobs that no simulated healthy job has.

What a model never saw on a healthy job it may take for a fault, however small it is. Simulated healthy jobs
give every feature of a window, and of its ranks, a range; the table lists the features of the collections'
healthy windows that lie outside it, the most frequent first. Such a feature asks for a simulator that varies
more, not for a threshold. Compare with simulated jobs of the same sort (``--dialect``): what a cluster's jobs
do hides what no testbed's job does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from rich.console import Console
from rich.table import Table

from rca.arrays import FloatArray
from rca.errors import RcaError
from rca.features import RANK_FEATURES, WINDOW_FEATURES, FeatureSet, extract
from rca.robust import nan_max, nan_min
from rca.simulation import sample_scenario, simulate
from rca.simulation.scenario import Dialect
from rca.simulation.seeds import for_each_scenario
from rca.telemetry.labels import read_collection
from rca.training.healthy_augmentation import innocent_seeds
from rca.training.run import DEFAULT_SEED

N_WINDOWS = 1500
LEAST_WINDOWS = 20
#: A feature's simulated range leaves out this share of the windows at each end.
LEFT_OUT = 0.002
SHOWN = 30
#: Features of a rank that are not its window's, and where they stand.
_OWN = [position for position, name in enumerate(RANK_FEATURES) if name not in WINDOW_FEATURES]
RANKS_OWN = [RANK_FEATURES[position] for position in _OWN]
_NONE = tuple(np.empty((0, width)) for width in (len(WINDOW_FEATURES), len(_OWN), len(_OWN)))


class Healthy(NamedTuple):
    """Features of healthy windows, a row for each: its own, and the smallest and largest among its ranks.

    Of ranks only the ends count, or a few large jobs would decide what is usual.
    """

    window: FloatArray
    least: FloatArray
    most: FloatArray

    @classmethod
    def of(cls, rows: Iterable[Healthy]) -> Healthy:
        """Stack windows."""
        held = list(rows)
        return cls(*(np.concatenate([_NONE[part], *(each[part] for each in held)]) for part in range(3)))

    @classmethod
    def one(cls, features: FeatureSet) -> Healthy:
        """One window's row."""
        own = features.rank[:, _OWN]
        return cls(features.window[None], nan_min(own)[None], nan_max(own)[None])


class Beyond(NamedTuple):
    """One feature, its values outside its simulated range, and how many windows know it."""

    feature: str
    low: float
    high: float
    outside: FloatArray
    n: int


def beyond_of(simulated: Healthy, real: Healthy) -> list[Beyond]:
    """Features of windows and of their ranks outside the range of simulated ones, most windows first."""
    found = beyond(WINDOW_FEATURES, (simulated.window, simulated.window), (real.window, real.window))
    found += beyond(RANKS_OWN, (simulated.least, simulated.most), (real.least, real.most))
    return sorted(found, key=lambda each: -each.outside.size)


def beyond(
    names: Sequence[str], simulated: tuple[FloatArray, FloatArray], real: tuple[FloatArray, FloatArray]
) -> list[Beyond]:
    """Features outside the range that simulated ones have.

    Parameters
    ----------
    names : sequence of str
    simulated, real : pair of ndarray of shape (n, len(names))
        Least and largest value of each healthy window; NaN where unknown.
    """
    found = []
    for column, name in enumerate(names):
        usual_low, usual_high = (_known(part[:, column]) for part in simulated)
        # What no simulated job knows at all is outside wherever it is known.
        low = float(np.quantile(usual_low, LEFT_OUT)) if usual_low.size else np.inf
        high = float(np.quantile(usual_high, 1 - LEFT_OUT)) if usual_high.size else -np.inf
        # A hair above a bound that many windows share is no other value.
        slack = 1e-9 * max(1.0, abs(low), abs(high)) if usual_low.size else 0.0
        least, most = (part[:, column] for part in real)
        outside = np.where(most > high + slack, most, np.where(least < low - slack, least, np.nan))
        if np.isfinite(outside).any():
            found.append(Beyond(name, low, high, _known(outside), int(np.isfinite(most).sum())))
    return found


def _known(values: FloatArray) -> FloatArray:
    return values[np.isfinite(values)]


def healthy_windows(folders: Iterable[Path], split: str | None = None) -> Healthy:
    """Features of the collections' healthy windows, of one part of each if `split` names it."""
    return Healthy.of(
        Healthy.one(extract(entry.read_window()))
        for folder in folders
        for entry in read_collection(folder)
        if split in {None, entry.summary.get("split")} and entry.read_label().failure_mode == "healthy"
    )


def simulated_windows(n: int, seed: int, dialect: Dialect | None, *, processes: int) -> Healthy:
    """Features of simulated healthy jobs of one sort, or of all."""
    seeds = innocent_seeds(n, seed)
    made = for_each_scenario(partial(_simulated, dialect=dialect), seeds, processes=processes)
    return Healthy.of(_counted(made, n))


def _simulated(seed: int, *, dialect: Dialect | None) -> Healthy:
    scenario = sample_scenario(np.random.default_rng(seed), cause="healthy", dialect=dialect)
    return Healthy.one(extract(simulate(scenario).window))


def table(found: Sequence[Beyond], n: int) -> Table:
    """The first features, one per row."""
    shown = Table(title=f"features of {n:,} healthy windows outside the range of simulated healthy ones")
    for column in ("feature", "windows", "simulated", "least", "median", "most"):
        shown.add_column(column)
    for each in found[:SHOWN]:
        values = [f"{edge:.3g}" for edge in np.quantile(each.outside, (0.0, 0.5, 1.0))]
        usual = f"{each.low:.3g} to {each.high:.3g}" if each.low <= each.high else "never known"
        shown.add_row(each.feature, f"{each.outside.size:,} of {each.n:,}", usual, *values)
    return shown


def main(arguments: list[str]) -> int:
    """Simulate, compare and print."""
    given = _options(arguments)
    try:
        real = healthy_windows(given.collections, given.split)
    except RcaError as error:
        sys.stderr.write(f"support: {error}\n")
        return 2
    if not len(real.window):
        sys.stderr.write("support: no healthy window in the collections\n")
        return 2
    simulated = simulated_windows(given.windows, given.seed, given.dialect, processes=given.processes)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table(beyond_of(simulated, real), len(real.window)))
    return 0


def _counted(made: Iterable[Healthy], total: int) -> Iterable[Healthy]:
    for done, each in enumerate(made, start=1):
        if done % 250 == 0:
            sys.stderr.write(f"support: {done:,} of {total:,} healthy jobs simulated\n")
            sys.stderr.flush()
        yield each


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks support", description=__doc__)
    parser.add_argument("collections", nargs="+", type=Path, metavar="COLLECTION", help="folder of windows")
    parser.add_argument("--split", help="part of the collections, as their manifests name it")
    parser.add_argument("--windows", type=_enough, default=N_WINDOWS, help="simulated healthy windows")
    parser.add_argument("--dialect", choices=get_args(Dialect), help="sort of simulated job; all if absent")
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
