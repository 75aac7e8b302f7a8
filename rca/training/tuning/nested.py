"""Nested cross-validation of one head: inner folds choose settings, outer folds say what that is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rca.evaluation.intervals import Estimate
from rca.training.head_losses import Losses, change, held_out_losses
from rca.training.heads import Target, fit_head
from rca.training.tuning.folds import grouped_folds, rows_of
from rca.training.tuning.search import PRESENT, Search, Values

#: Share of the present loss that tuning has to take away: less is not worth settings of one's own.
LEAST_GAIN = 0.02

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How long to search.

    Attributes
    ----------
    trials : int
        Per search, the present settings among them.
    outer, inner : int
        Folds that judge, and folds that choose.
    """

    trials: int = 20
    outer: int = 3
    inner: int = 2


@dataclass(frozen=True)
class TunedHead:
    """What tuning a head is worth.

    Attributes
    ----------
    name : str
    groups : int
        Scenarios and incidents that judged.
    present : float
        Log loss of the present settings on the outer folds.
    gain : Estimate
        Log loss that tuning takes away, over groups; negative where it adds some.
    chosen : dict of str to float or None
        Settings that the same search over all rows ends with; None where the gain is not beyond chance, or
        smaller than `LEAST_GAIN`.
    lacking : str
        Why the head could not be tuned; empty otherwise.
    """

    name: str
    groups: int
    present: float
    gain: Estimate
    chosen: Values | None
    lacking: str = ""


def tune_head(
    name: str, target: Target, *, file: Path, study: str, seed: int, effort: Effort, tell: Tell
) -> TunedHead:
    """Search inside every outer fold, judge on it, and search over all rows only if that has won.

    Parameters
    ----------
    name : str
        Of the head.
    target : Target
    file : Path
        Where the studies are kept.
    study : str
        What the names of the head's studies begin with.
    """
    present, tuned = [], []
    for number, (outer, scored) in enumerate(grouped_folds(target, effort.outer, "outer"), start=1):
        lacking = what_lacks(outer, effort.inner)
        if lacking:
            return TunedHead(name, 0, np.nan, Estimate(np.nan, np.nan, np.nan, 0), None, lacking)
        tell(f"head {name}: search {number} of {effort.outer}")
        search = Search(file, f"{study}/{name}/outer-{number}", seed)
        best = search.run(inner_loss(name, rows_of(outer, ~scored), effort.inner, seed), effort.trials)
        now, then = _judged(search, name, outer, best, seed)
        present.append(now)
        tuned.append(then)
    base, other = Losses.joined(present), Losses.joined(tuned)
    gain = change(other, base)
    chosen = None
    if gain.low > 0 and gain.value >= LEAST_GAIN * base.mean:
        tell(f"head {name}: search over all rows")
        chosen = Search(file, f"{study}/{name}/all", seed).run(
            inner_loss(name, target, effort.outer, seed), effort.trials
        )
    return TunedHead(name, gain.n, base.mean, gain, chosen)


def inner_loss(name: str, target: Target, n_folds: int, seed: int) -> Callable[[Values], float]:
    """Log loss of settings over grouped folds of a target, each fitted without the fold."""

    def loss(values: Values) -> float:
        parts = [
            held_out_losses(fit_head(name, fold, seed, values), fold, scored)
            for fold, scored in grouped_folds(target, n_folds, "inner")
        ]
        return Losses.joined(parts).mean

    return loss


def what_lacks(outer: Target, n_inner: int) -> str:
    """What keeps a head from being fitted on some fold; empty if nothing does."""
    inside = rows_of(outer, outer.part != "test")
    every = [outer, *(fold for fold, _ in grouped_folds(inside, n_inner, "inner"))]
    for fold in every:
        for part in ("train", "calibration", "test"):
            if len({label for label, own in zip(fold.labels, fold.part, strict=True) if own == part}) < 2:
                return f"fewer than two classes among the {part} rows of a fold"
    return ""


def _judged(search: Search, name: str, outer: Target, best: Values, seed: int) -> tuple[Losses, Losses]:
    """Losses on the outer fold with the present and with the found settings, kept with the study."""
    known = search.known("outer")
    # More trials may have found other settings since.
    if known is None or known["settings"] != best:
        scored = outer.part == "test"
        wanted = [PRESENT] if best == PRESENT else [PRESENT, best]
        fitted = [fit_head(name, outer, seed, values) for values in wanted]
        losses = [held_out_losses(head, outer, scored) for head in fitted]
        pairs = [[each.summed.tolist(), each.weight.tolist()] for each in (losses[0], losses[-1])]
        known = {"settings": best, "losses": pairs}
        search.keep("outer", known)
    now, then = (Losses(np.array(summed), np.array(weight)) for summed, weight in known["losses"])
    return now, then
