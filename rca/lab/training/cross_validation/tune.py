"""`rca tune`: search LightGBM's settings for each head, judged by nested cross-validation.

Inner folds choose settings by log loss. Outer folds measure the gain on groups that no search has used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rca.arrays import BoolArray
from rca.lab.evaluation.intervals import UNKNOWN, Estimate
from rca.lab.evaluation.tables import TextTable
from rca.lab.training.cross_validation.driver import Results, key_of
from rca.lab.training.cross_validation.folds import Fold, group_folds
from rca.lab.training.cross_validation.held_out_loss import Losses, held_out_losses, loss_change
from rca.lab.training.cross_validation.pool import Pool, build_pool
from rca.lab.training.cross_validation.search import PRESENT, Values, import_optuna, search
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.heads import Target, fit_head, targets
from rca.lab.training.held_out import named
from rca.lab.training.weighting import REAL_SHARE, balanced
from rca.sources.labels import Part
from rca.whatif.result import finite
from rca.workers import HERE, Workers

Progress = Callable[[str, int, int], None]

DEFAULT_WINDOWS = 3000
#: Variants of each capture, see `rca.lab.training.incidents.varied`.
DEFAULT_VARIANTS = 8
DEFAULT_TRIALS = 20
DEFAULT_FOLDS = 3
#: Smallest share of the present loss that tuning must remove before its settings replace the present ones.
LEAST_GAIN = 0.02


@dataclass(frozen=True)
class TunedHead:
    """The result for one head.

    Attributes
    ----------
    groups : int
        Scenarios and incidents of the outer folds.
    present : float
        Log loss of the present settings on the outer folds, nats.
    gain : Estimate
        Log loss that tuning removes, over groups; negative if it adds some.
    chosen : dict of str to float or None
        Settings of a search over all windows; None if the gain's interval includes 0, or if the gain is
        smaller than `LEAST_GAIN`.
    lacking : str
        Why the head could not be tuned; "" if it was.
    """

    name: str
    groups: int
    present: float
    gain: Estimate
    chosen: Values | None
    lacking: str = ""


@dataclass(frozen=True)
class Tuning:
    """Results of all heads, and the command that reproduces them."""

    command: str
    corpus_sha256: str
    heads: tuple[TunedHead, ...]

    @property
    def settings(self) -> dict[str, Values]:
        """Settings of the heads for which tuning wins; all others keep the present ones."""
        return {head.name: head.chosen for head in self.heads if head.chosen is not None}

    def as_dict(self) -> dict[str, Any]:
        """Everything for JSON."""
        heads = [{**asdict(head), "gain": head.gain.as_row()} for head in self.heads]
        plain: dict[str, Any] = finite(
            {"command": self.command, "corpus_sha256": self.corpus_sha256, "heads": heads}
        )
        return plain

    def table(self) -> TextTable:
        """One row per head; losses in thousandths of a nat."""
        header = ("head", "groups", "log loss", "tuning removes", "95 % interval", "result")
        title = "held-out log loss in thousandths of a nat, and the part that tuning removes"
        return TextTable(title, header, tuple(map(_row, self.heads)))


def _row(head: TunedHead) -> tuple[str, ...]:
    if head.lacking:
        return (head.name, "-", "-", "-", "-", f"not tuned: {head.lacking}")
    value, low, high = (number * 1e3 for number in head.gain[:3])
    reason = "the interval includes 0" if low <= 0 else f"less than {LEAST_GAIN:.0%} of the loss"
    return (
        head.name,
        str(head.groups),
        f"{head.present * 1e3:.0f}",
        f"{value:+.1f}",
        f"{low:+.1f} .. {high:+.1f}",
        "tuned" if head.chosen is not None else f"present settings kept: {reason}",
    )


def tune(
    n_windows: int,
    seed: int,
    collections: Sequence[Path],
    *,
    results: Path,
    heads: Sequence[str] = (),
    trials: int = DEFAULT_TRIALS,
    n_folds: int = DEFAULT_FOLDS,
    variants: int = DEFAULT_VARIANTS,
    workers: Workers = HERE,
    cache: FeatureCache | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Tuning:
    """Search settings for each head, and measure their gain on groups that no search has used.

    Parameters
    ----------
    n_windows, seed : int
        The simulated corpus, as of `rca.lab.training.run.train`.
    collections : sequence of Path
        Captures that are learned from. Test parts are not used.
    results : Path
        Folder of finished folds; an interrupted run continues with them.
    heads : sequence of str
        Heads to tune; all if empty.
    trials : int
        Settings per search, the present ones included.
    n_folds : int
        Outer folds, and inner folds of each.
    variants : int
        Variants of each capture.
    workers, cache
        For the features; without influence on the result.
    progress : callable
        ``(phase, done, total)``.

    Raises
    ------
    MissingExtra
        Without Optuna.
    """
    import_optuna()
    pool = build_pool(
        n_windows,
        seed,
        collections,
        variants=variants,
        every_part=False,
        workers=workers,
        cache=cache,
        progress=progress,
    )
    # Every window is learned from in some fold, so its weight is that of a learned one.
    everything: list[Part] = ["train"] * len(pool.corpus.part)
    corpus = replace(pool.corpus, part=tuple(everything))
    corpus = replace(corpus, weight=balanced(corpus, REAL_SHARE))
    wanted = {name: target for name, target in targets(corpus).items() if name in heads or not heads}
    tuners = [Tuner(name, target, pool, seed, trials, n_folds) for name, target in wanted.items()]
    found = tuned(tuners, Results(results), workers=workers, progress=progress)
    options = {"windows": n_windows, "seed": seed, "variants": variants, "trials": trials, "folds": n_folds}
    given = [f"--{option} {value}" for option, value in options.items()]
    given += [f"--collection {name}" for name in named(collections)] + [f"--head {name}" for name in heads]
    return Tuning(" ".join(["rca tune", *given]), corpus.digest, tuple(found))


def tuned(
    tuners: Sequence[Tuner],
    results: Results,
    *,
    workers: Workers = HERE,
    progress: Progress = lambda phase, done, total: None,
) -> list[TunedHead]:
    """Search within every outer fold and judge on it; search over all windows only for heads that win.

    Parameters
    ----------
    results : Results
        Finished searches; an interrupted run continues with them.
    workers : Workers
        Each takes one search at a time; without influence on the result.
    """
    lacking = {each.name: each.lacking() for each in tuners}
    able = [each for each in tuners if not lacking[each.name]]
    judged: dict[str, list[dict[str, Any]]] = {each.name: [] for each in able}
    # Sent once, with the pool that all share; a task is a place in it.
    heads = _Heads(tuple(able))
    todo = [(place, number) for place, each in enumerate(able) for number in range(each.n_folds)]
    keys = [able[place].key(number) for place, number in todo]
    found = results.each(keys, lambda lack: workers.map(heads.judged, (todo[place] for place in lack)))
    for done, ((place, _), result) in enumerate(zip(todo, found, strict=True), start=1):
        judged[able[place].name].append(result)
        progress("searching within each fold", done, len(todo))
    gains = {name: _Gain.of(held) for name, held in judged.items()}
    winners = [each for each in able if gains[each.name].wins]
    heads = _Heads(tuple(winners))
    keys = [each.key(None) for each in winners]
    chosen = results.each(keys, lambda lack: workers.map(heads.chosen, lack))
    settings = {}
    for done, (each, values) in enumerate(zip(winners, chosen, strict=True), start=1):
        settings[each.name] = values
        progress("searching over all windows", done, len(winners))
    return [
        TunedHead(each.name, 0, np.nan, UNKNOWN, None, lacking[each.name])
        if lacking[each.name]
        else gains[each.name].of_head(each.name, settings.get(each.name))
        for each in tuners
    ]


class _Gain(NamedTuple):
    """Loss of the present settings on the outer folds, and what tuned ones remove from it."""

    present: float
    gain: Estimate

    @classmethod
    def of(cls, judged: Sequence[dict[str, Any]]) -> _Gain:
        base = Losses.of([Losses.read(each["present"]) for each in judged])
        return cls(base.mean, loss_change(Losses.of([Losses.read(each["tuned"]) for each in judged]), base))

    @property
    def wins(self) -> bool:
        return self.gain.low > 0 and self.gain.value >= LEAST_GAIN * self.present

    def of_head(self, name: str, chosen: Values | None) -> TunedHead:
        return TunedHead(name, self.gain.n, self.present, self.gain, chosen)


@dataclass(frozen=True)
class Tuner:
    """Search of one head's settings over the windows of a pool."""

    name: str
    target: Target
    pool: Pool
    seed: int
    trials: int
    n_folds: int

    def lacking(self) -> str:
        """Why the head cannot be tuned; "" if it can."""
        inner = [self._inner(fold) for fold in self._outer]
        return next(filter(None, map(self._lacking, chain(self._outer, *inner))), "")

    def key(self, number: int | None) -> str:
        """Name of the result of `judged`, or of `chosen` for None."""
        fold = None if number is None else self._outer[number]
        return key_of(self.pool, fold, ["tune", self.name, self.seed, self.trials, self.n_folds])

    def judged(self, number: int) -> dict[str, Any]:
        """Losses on an outer fold of the ``present`` settings, and of those ``tuned`` within it."""
        fold = self._outer[number]
        best = self._search(self._inner(fold))
        return {
            "present": self.losses([fold], PRESENT).to_lists(),
            "tuned": self.losses([fold], best).to_lists(),
        }

    def chosen(self) -> Values:
        """The best settings of a search over all windows."""
        return self._search(self._folds("inner", self._class_of))

    @cached_property
    def _class_of(self) -> dict[str, str]:
        # A rare class has to be in every part of every fold.
        names, first = np.unique(self.target.group, return_index=True)
        return {str(name): self.target.labels[row] for name, row in zip(names, first, strict=True)}

    @cached_property
    def _outer(self) -> list[Fold]:
        return self._folds("outer", self._class_of)

    def _inner(self, fold: Fold) -> list[Fold]:
        return self._folds("inner", self._learned(fold, self._class_of))

    def losses(self, folds: Sequence[Fold], values: Values) -> Losses:
        """Losses of settings on folds, each fitted without the fold."""
        parts = []
        for fold in folds:
            target, tested = self._in_fold(fold)
            parts.append(held_out_losses(fit_head(self.name, target, self.seed, values), target, tested))
        return Losses.of(parts)

    def _search(self, folds: Sequence[Fold]) -> Values:
        return search(lambda values: self.losses(folds, values).mean, self.trials, self.seed)

    def _folds(self, salt: str, class_of: Mapping[str, str]) -> list[Fold]:
        return group_folds(self.pool, self.n_folds, salt, class_of)

    def _learned(self, fold: Fold, class_of: Mapping[str, str]) -> dict[str, str]:
        """The classes of the groups that a fold learns from."""
        learned = {self.pool.corpus.group[position] for position in np.flatnonzero(fold.learned)}
        return {group: label for group, label in class_of.items() if group in learned}

    def _in_fold(self, fold: Fold) -> tuple[Target, BoolArray]:
        """The head's target with the parts of a fold, and its tested rows, shape (n_rows,)."""
        groups = self.pool.corpus.group
        part_of = dict(zip(groups, fold.part, strict=True))
        held = np.flatnonzero(np.isin(self.pool.origin, fold.tested))
        tested: BoolArray = np.isin(self.target.group, [groups[position] for position in held])
        return replace(self.target, part=np.array([part_of[each] for each in self.target.group])), tested

    def _lacking(self, fold: Fold) -> str:
        """Why the head cannot be fitted or scored on a fold; "" if it can."""
        target, tested = self._in_fold(fold)
        labels = np.array(target.labels)
        rows = {"tested": tested} | {name: target.part == name for name in ("train", "calibration")}
        few = [name for name, held in rows.items() if np.unique(labels[held]).size < 2]
        return f"fewer than two classes among the {few[0]} rows of a fold" if few else ""


@dataclass(frozen=True)
class _Heads:
    """Searches of several heads over one pool, by their places."""

    tuners: tuple[Tuner, ...]

    def judged(self, task: tuple[int, int]) -> dict[str, Any]:
        place, number = task
        return self.tuners[place].judged(number)

    def chosen(self, place: int) -> Values:
        return self.tuners[place].chosen()
