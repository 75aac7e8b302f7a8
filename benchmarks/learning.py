"""``python -m benchmarks learning``: what more simulated windows are worth to each head.

Every head is fitted on nested shares of the training scenarios; its log loss on validation scenarios is
compared, row by row, with that of the fit on the largest share. For the failure mode the table also says how
many faulty windows are detected when the alarm threshold lets a fixed share of healthy ones through, with
and without the additional healthy windows that `rca train` learns from (`rca.training.healthy_augmentation`);
windows without phase timings have a threshold of their own and are left out. The test part is not asked.

Validation scenarios are of the same kind as those learned from. ``--elsewhere`` asks labelled collections as
well, from which nothing is learned: what more windows are worth on jobs unlike the simulator's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.strangers import losses_on, strangers_of
from rca.arrays import BoolArray, FloatArray
from rca.classify.classifier import HEADS
from rca.classify.head import Head
from rca.classify.preconditions import work_seen
from rca.errors import RcaError
from rca.evaluation.intervals import Estimate, score
from rca.training.corpus import Corpus, stack
from rca.training.feature_cache import FeatureCache, default_folder
from rca.training.head_losses import Losses, change, held_out_losses
from rca.training.heads import FittedHead, Target, fit_head, targets, with_healthy
from rca.training.healthy_augmentation import PER_CORPUS_WINDOWS, halves, innocent_windows
from rca.training.run import DEFAULT_SEED
from rca.training.simulated import simulated_examples
from rca.training.thresholds import FALSE_ALARM_BUDGET

N_WINDOWS = 24000
#: With fewer, some head finds no example of a class in its smallest share.
LEAST_WINDOWS = 1000
SHARES = (0.25, 0.5, 1.0)

Progress = Callable[[str], None]


class Fit(NamedTuple):
    """One head on one share of the training scenarios; detection is of head ``mode`` only.

    `elsewhere` are the losses on windows of other origin, if some are asked.
    """

    head: str
    share: float
    more_healthy: int
    rounds: int
    losses: Losses
    detected: Estimate | None
    elsewhere: Losses | None = None


def some_of(target: Target, share: float, seed: int) -> Target:
    """The target with so many of its training groups left; those of a smaller share are among a larger's."""
    groups = np.unique(target.group)
    order = dict(zip(groups.tolist(), np.random.default_rng(seed).permutation(groups.size), strict=True))
    position = np.array([order[group] for group in target.group.tolist()])
    left_out = (target.part == "train") & (position >= share * groups.size)
    return replace(target, part=np.where(left_out, "left out", target.part))


def detection(head: FittedHead, corpus: Corpus, healthy: FloatArray, budget: float) -> Estimate:
    """Share of the faulty validation windows above the threshold that lets `budget` of the healthy through.

    Only windows in which somebody's work was timed count, on either side.

    Parameters
    ----------
    head : FittedHead
        Of the failure mode.
    corpus : Corpus
    healthy : ndarray of shape (n, n_window_features)
        Windows that were not learned from.
    budget : float
    """
    loaded = Head.load("mode", head.entry(), head.text, HEADS["mode"])

    def chance(rows: FloatArray) -> FloatArray:
        seen = rows[work_seen(rows)]
        return 1.0 - loaded.probabilities(seen)[:, loaded.classes.index("healthy")]

    faulty = (np.array(corpus.part) == "validation") & (np.array(corpus.mode) != "healthy")
    found = chance(corpus.window[faulty]) > np.quantile(chance(healthy), 1.0 - budget)
    return score(found.astype(np.float64), np.random.default_rng(0))


def curve(
    corpus: Corpus,
    innocents: FloatArray,
    heads: Sequence[str],
    shares: Sequence[float],
    seed: int,
    progress: Progress,
    strangers: Corpus | None = None,
) -> list[Fit]:
    """Fit every head on every share; the failure mode once more with more healthy windows, on all of them."""
    foreign = None if strangers is None else targets(strangers)
    taught, judging = halves(innocents)
    found = []
    for name in heads:
        whole = targets(corpus)[name]
        held: BoolArray = whole.part == "validation"
        asked = [(share, 0, some_of(whole, share, seed)) for share in shares]
        if name == "mode":
            more = with_healthy(asked[-1][2], taught)
            asked.append((shares[-1], len(taught), more))
        for share, healthy, target in asked:
            head = fit_head(name, target, seed)
            detected = detection(head, corpus, judging, FALSE_ALARM_BUDGET) if name == "mode" else None
            losses = held_out_losses(head, whole, held)
            outside = None if foreign is None else losses_on(head, foreign[name])
            found.append(Fit(name, share, healthy, head.rounds, losses, detected, outside))
            told = "" if outside is None else f", elsewhere {outside.mean:.4f}"
            progress(f"{name} on {share:.0%}: {head.rounds} rounds, log loss {losses.mean:.4f}{told}")
    return found


def table(fits: Sequence[Fit]) -> Table:
    """One row per fit; the change is against the last share of the same head."""
    shown = Table(
        title="learning curves: log loss of validation scenarios, in thousandths; share of faults detected"
    )
    for column in (
        "head",
        "of the training",
        "rounds",
        "loss",
        r"above the largest share \[95 %]",
        r"detected \[95 %]",
    ):
        shown.add_column(column)
    asked_elsewhere = any(fit.elsewhere is not None for fit in fits)
    if asked_elsewhere:
        shown.add_column(r"elsewhere: loss, above the largest share \[95 %]")
    for fit in fits:
        base = next(each for each in reversed(fits) if each.head == fit.head and not each.more_healthy)
        rise = change(base.losses, fit.losses)
        more = f" + {fit.more_healthy:,} healthy" if fit.more_healthy else ""
        told = "" if fit.detected is None else _bracketed(fit.detected, 1, 3)
        loss = f"{fit.losses.mean * 1e3:.1f}"
        cells = [fit.head, f"{fit.share:.0%}{more}", str(fit.rounds), loss, _bracketed(rise, 1e3, 1), told]
        shown.add_row(*cells, *([_elsewhere_cell(fit, base)] if asked_elsewhere else []))
    return shown


def _elsewhere_cell(fit: Fit, base: Fit) -> str:
    if fit.elsewhere is None or base.elsewhere is None:
        return ""
    rise = change(base.elsewhere, fit.elsewhere)
    return f"{fit.elsewhere.mean * 1e3:.1f}, {_bracketed(rise, 1e3, 1)}"


def _bracketed(estimate: Estimate, scale: float, digits: int) -> str:
    value, low, high = (f"{number * scale:.{digits}f}" for number in estimate[:3])
    return rf"{value} \[{low}, {high}]"


def main(arguments: list[str]) -> int:
    """Simulate (or read the cache), fit, print the table and write the figures if asked."""
    given = _options(arguments)
    try:
        # Before an hour of simulation: what cannot be read then could not be read now.
        strangers = strangers_of(given.elsewhere) if given.elsewhere else None
    except RcaError as error:
        _progress(f"{error}; {error.hint}" if error.hint else str(error))
        return 2
    if strangers is not None:
        _progress(f"{len(strangers.mode):,} windows to ask elsewhere")
    cache = FeatureCache(default_folder())
    _progress(f"simulating {given.windows:,} windows, or reading their features")
    examples = simulated_examples(given.windows, given.seed, processes=given.processes, cache=cache)
    corpus = stack(examples)
    n = given.windows // PER_CORPUS_WINDOWS
    _progress(f"and {n:,} more healthy ones")
    innocents = innocent_windows(
        n, given.seed, processes=given.processes, cache=cache, progress=lambda done, total: None
    )
    heads, shares = given.heads or list(HEADS), sorted(given.shares)
    fits = curve(corpus, innocents, heads, shares, given.seed, _progress, strangers)
    Console(width=None if sys.stdout.isatty() else 140).print(table(fits))
    if given.json:
        given.json.write_text(json.dumps([_row(fit) for fit in fits], indent=2) + "\n")
    return 0


def _row(fit: Fit) -> dict[str, object]:
    detected = None if fit.detected is None else fit.detected.as_row()
    outside = None if fit.elsewhere is None else fit.elsewhere.mean
    return fit._asdict() | {"losses": fit.losses.mean, "detected": detected, "elsewhere": outside}


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks learning", description=__doc__)
    parser.add_argument("--windows", type=_windows, default=N_WINDOWS, help="simulated windows")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--heads", nargs="+", choices=list(HEADS), default=[], help="only these")
    parser.add_argument(
        "--shares", nargs="+", type=_share, default=list(SHARES), help="of the training scenarios"
    )
    parser.add_argument(
        "--elsewhere",
        nargs="+",
        type=Path,
        default=[],
        metavar="COLLECTION",
        help="labelled collections to ask as well; nothing is learned from them, parts test stay unasked",
    )
    parser.add_argument("--processes", type=int, default=2, help="for the simulation")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, too")
    return parser.parse_args(arguments)


def _share(text: str) -> float:
    value = float(text)
    if not 0.01 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no share from 0.01 to 1")
    return value


def _windows(text: str) -> int:
    value = int(text)
    if value < LEAST_WINDOWS:
        raise argparse.ArgumentTypeError(f"at least {LEAST_WINDOWS}: fewer have too few of every kind")
    return value


def _progress(what: str) -> None:
    sys.stderr.write(f"learning: {what}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
