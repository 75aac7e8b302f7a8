"""`rca tune`: search LightGBM's settings for each head by grouped cross-validation.

A third of the groups is set aside. The folds of the search are made of the others, and the gain of the best
settings is measured on the third.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.classify.classifier import HEADS
from rca.classify.head import Head
from rca.errors import MissingExtra, SourceError
from rca.lab.evaluation.intervals import UNKNOWN, Estimate, bootstrap
from rca.lab.evaluation.tables import TextTable
from rca.lab.training.corpus import stack
from rca.lab.training.examples import gathered
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.heads import MAX_ROUNDS, PARAMETERS, PATIENCE, FittedHead, Target, fit_head, targets
from rca.lab.training.settings import TUNABLE, Bounds
from rca.lab.training.weighting import REAL_SHARE, balanced
from rca.sources.labels import Part
from rca.whatif.result import finite
from rca.workers import HERE, Workers, code_digest

Progress = Callable[[str, int, int], None]
Values = dict[str, float]
#: Part of each row of a head's target in a fold: ``train``, ``calibration``, ``test``, or "" for unused.
Parts = np.ndarray[tuple[int], np.dtype[np.str_]]

N_FOLDS = 3
#: Variants of each capture, see `rca.lab.training.incidents.varied`.
VARIANTS = 8
#: One group in so many of those that a fold learns from calibrates, about as in a training.
CALIBRATES = 6
#: Smallest share of the present loss that tuning must remove before its settings replace the present ones.
MIN_GAIN = 0.02
#: The first trial of every search, so that a search ends no worse on its own folds.
PRESENT: Values = {name: PARAMETERS[name] for name in TUNABLE}
#: Random trials before the sampler uses the results.
STARTUP_TRIALS = 5


@dataclass(frozen=True)
class TunedHead:
    """The result for one head.

    Attributes
    ----------
    present : float
        Log loss of the present settings on the groups that no search has used, nats.
    gain : Estimate
        Log loss that the best settings of the search remove there; negative if they add some.
    best : dict of str to float
        These settings.
    lacking : str
        Why the head could not be tuned; "" if it was.
    """

    name: str
    present: float = np.nan
    gain: Estimate = UNKNOWN
    best: Values | None = None
    lacking: str = ""

    @property
    def chosen(self) -> Values | None:
        """The best settings, if the gain is certain and large enough."""
        wins = self.gain.low > 0 and self.gain.value >= MIN_GAIN * self.present
        return self.best if wins else None

    def as_dict(self) -> dict[str, Any]:
        """Everything for JSON."""
        plain: dict[str, Any] = finite(asdict(self) | {"gain": self.gain.as_row(), "chosen": self.chosen})
        return plain


def table(heads: Sequence[TunedHead]) -> TextTable:
    """One row per head; losses in thousandths of a nat."""
    header = ("head", "groups", "log loss", "tuning removes", "95 % interval", "result")
    title = "held-out log loss in thousandths of a nat, and the part that tuning removes"
    return TextTable(title, header, tuple(map(_row, heads)))


def _row(head: TunedHead) -> tuple[str, ...]:
    if head.lacking:
        return (head.name, "-", "-", "-", "-", f"not tuned: {head.lacking}")
    value, low, high = (number * 1e3 for number in head.gain[:3])
    reason = "the interval includes 0" if low <= 0 else f"less than {MIN_GAIN:.0%} of the loss"
    return (
        head.name,
        str(head.gain.n),
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
    trials: int = 20,
    workers: Workers = HERE,
    cache: FeatureCache | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> list[TunedHead]:
    """Search settings for each head, and measure their gain on groups that no search has used.

    Parameters
    ----------
    n_windows, seed : int
        The simulated corpus, as of `rca.lab.training.run.train`.
    collections : sequence of Path
        Captures that are learned from. Test parts are not used.
    results : Path
        Folder of the trials; an interrupted run continues with them.
    heads : sequence of str
        Heads to tune; all if empty.
    trials : int
        Settings tried in each search.
    workers, cache
        Without influence on the result.
    progress : callable
        ``(phase, done, total)``.
    """
    import_optuna()
    examples = gathered(
        n_windows, seed, collections, variants=VARIANTS, workers=workers, cache=cache, progress=progress
    )
    corpus = stack(each for each in examples if each.part != "test")
    # Every window is learned from in some fold, so its weight is that of a learned one.
    everything: list[Part] = ["train"] * len(corpus.part)
    corpus = replace(corpus, part=tuple(everything))
    corpus = replace(corpus, weight=balanced(corpus, REAL_SHARE))
    wanted = {name: target for name, target in targets(corpus).items() if name in heads or not heads}
    return tuned(wanted, results, corpus.digest, seed, trials, workers=workers, progress=progress)


def tuned(
    wanted: Mapping[str, Target],
    results: Path,
    corpus_sha256: str,
    seed: int,
    trials: int,
    *,
    workers: Workers = HERE,
    progress: Progress = lambda phase, done, total: None,
) -> list[TunedHead]:
    """Search on folds of two thirds of the groups, and judge on the last third."""
    folds: dict[str, list[Parts]] = {}
    found: dict[str, TunedHead] = {}
    for name, target in wanted.items():
        try:
            judged = group_folds(target, N_FOLDS, seed)[0]
            folds[name] = [*group_folds(target, N_FOLDS, seed + 1, judged != "test"), judged]
        except _TooFewError as error:
            found[name] = TunedHead(name, lacking=str(error))
    fits = _Fits(wanted, folds, seed)
    facts = [code_digest(), PARAMETERS, MAX_ROUNDS, PATIENCE, corpus_sha256, seed]
    best = _searched(fits, results, facts, trials, workers, progress)
    losses = workers.map(
        fits.losses, [(name, N_FOLDS, values) for name in folds for values in (PRESENT, best[name])]
    )
    for name in folds:
        present, other = islice(losses, 2)
        found[name] = TunedHead(name, present.mean, loss_change(other, present), best[name])
    return [found[name] for name in wanted]


class _TooFewError(Exception):
    """A head has too few rows for a fold."""


def group_folds(target: Target, n: int, seed: int, within: BoolArray | None = None) -> list[Parts]:
    """Folds of whole groups with like shares of the classes: the part of every row in each fold.

    Parameters
    ----------
    n : int
        Number of folds.
    within : ndarray of shape (n_rows,), bool, optional
        Rows to use; all by default.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    labels = np.array(target.labels)

    def split(rows: IntArray, n: int) -> Iterator[tuple[IntArray, IntArray]]:
        deal = StratifiedGroupKFold(n, shuffle=True, random_state=seed % 2**31)
        with warnings.catch_warnings():
            # A rare class may be absent from a fold.
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            for learned, tested in deal.split(rows, labels[rows], target.group[rows]):
                yield rows[learned], rows[tested]

    found = []
    try:
        for learned, tested in split(np.flatnonzero(within if within is not None else labels != ""), n):
            # A rare class has to be calibrated, too.
            trained, calibrated = max(
                split(learned, CALIBRATES), key=lambda pair: np.unique(labels[pair[1]]).size
            )
            part = np.full(labels.size, "", dtype="<U11")
            part[tested], part[trained], part[calibrated] = "test", "train", "calibration"
            found.append(part)
    except ValueError:
        raise _TooFewError(f"fewer rows of every class than {max(n, CALIBRATES)} folds") from None
    for part in found:
        for name in ("test", "train", "calibration"):
            if np.unique(labels[part == name]).size < 2:
                rows_of = "tested" if name == "test" else name
                raise _TooFewError(f"fewer than two classes among the {rows_of} rows of a fold")
    return found


def _searched(
    fits: _Fits,
    results: Path,
    depends_on: Sequence[object],
    trials: int,
    workers: Workers,
    progress: Progress,
) -> dict[str, Values]:
    """The best settings of each head; one trial of every search at a time.

    Each search is an Optuna study in a file of `results`. The sampler's seed depends on the number of
    finished trials only, so an interrupted run continues as it would have.
    """
    optuna = import_optuna()
    states = optuna.trial.TrialState
    space = {name: _distribution(optuna, bounds) for name, bounds in TUNABLE.items()}
    try:
        results.mkdir(parents=True, exist_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(results / "tune.journal"))
    except OSError as error:
        raise SourceError(f"cannot write into {results}: {error.strerror or error}") from error
    storage, studies = optuna.storages.JournalStorage(backend), {}
    for name, parts in fits.folds.items():
        sha = hashlib.sha256(repr([name, *depends_on]).encode() + np.stack(parts).tobytes())
        study = optuna.create_study(storage=storage, study_name=sha.hexdigest(), load_if_exists=True)
        # A trial that was interrupted must not count.
        for stale in study.get_trials(states=[states.RUNNING]):
            study.tell(stale.number, state=states.FAIL)
        studies[name] = study
    for number in range(trials):
        asked = {}
        for name, study in studies.items():
            if len(study.get_trials(states=[states.COMPLETE])) <= number:
                seed = (fits.seed + number) % 2**31
                study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
                if number == 0:
                    study.enqueue_trial(PRESENT)
                asked[name] = study.ask(space)
        tasks = [(name, fold, trial.params) for name, trial in asked.items() for fold in range(N_FOLDS)]
        losses = workers.map(fits.losses, tasks)
        for name, trial in asked.items():
            summed, weight = map(np.concatenate, zip(*islice(losses, N_FOLDS), strict=True))
            studies[name].tell(trial, GroupLosses(summed, weight).mean)
        progress("searching settings", number + 1, trials)
    done = {name: study.get_trials(states=[states.COMPLETE])[:trials] for name, study in studies.items()}
    return {name: min(held, key=lambda trial: trial.value).params for name, held in done.items()}


def import_optuna() -> Any:
    """Optuna, without its log messages.

    Raises
    ------
    MissingExtra
        If it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra("tuning needs Optuna", hint="pip install 'straggler-rca[train]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(optuna: Any, bounds: Bounds) -> Any:
    if bounds.whole:
        return optuna.distributions.IntDistribution(int(bounds.low), int(bounds.high), log=bounds.decades)
    return optuna.distributions.FloatDistribution(bounds.low, bounds.high, log=bounds.decades)


class GroupLosses(NamedTuple):
    """Log loss of one head on rows that it has not learned, per group; arrays of shape (n_groups,)."""

    summed: FloatArray
    weight: FloatArray

    @property
    def mean(self) -> float:
        """Weighted mean over rows."""
        return float(self.summed.sum() / self.weight.sum())


def held_out_losses(head: FittedHead, target: Target, held: BoolArray) -> GroupLosses:
    """Log loss of a fitted head on some of its target's rows.

    Parameters
    ----------
    held : ndarray of shape (n_rows,), bool
    """
    loaded = Head.load(head.name, head.entry(), head.text, HEADS[head.name])
    codes = [target.classes.index(label) for label, kept in zip(target.labels, held, strict=True) if kept]
    chance = loaded.probabilities(target.rows[held])[np.arange(len(codes)), codes]
    loss = -np.log(np.maximum(chance, 1e-12)) * target.weight[held]
    _, group = np.unique(target.group[held], return_inverse=True)
    return GroupLosses(*(np.bincount(group, each).astype(float) for each in (loss, target.weight[held])))


def loss_change(base: GroupLosses, other: GroupLosses, seed: int = 0) -> Estimate:
    """Mean rise of the log loss with its 95 % interval from drawing whole groups."""
    return bootstrap((other.summed - base.summed) / base.weight.mean(), np.random.default_rng(seed))


@dataclass(frozen=True)
class _Fits:
    """Targets and folds of the heads. They travel to the workers once.

    A task is a head, a fold and settings. The fold after those of the search judges.
    """

    wanted: Mapping[str, Target]
    folds: Mapping[str, list[Parts]]
    seed: int

    def losses(self, task: tuple[str, int, Values]) -> GroupLosses:
        """Losses of settings on a fold, fitted without its tested groups."""
        name, fold, values = task
        part = self.folds[name][fold]
        target = replace(self.wanted[name], part=part)
        return held_out_losses(fit_head(name, target, self.seed, values), target, part == "test")
