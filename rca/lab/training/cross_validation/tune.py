"""`rca tune`: search LightGBM's settings for each head, judged by nested cross-validation.

Inner folds choose settings by log loss. Outer folds measure the gain on groups that no search has used.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.classifier import HEADS
from rca.classify.head import Head
from rca.errors import MissingExtra, SourceError
from rca.lab.evaluation.intervals import UNKNOWN, Estimate, bootstrap
from rca.lab.training.corpus import stack
from rca.lab.training.cross_validation.tuning_result import TunedHead, Tuning, Values
from rca.lab.training.examples import gathered
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.heads import MAX_ROUNDS, PARAMETERS, PATIENCE, FittedHead, Target, fit_head, targets
from rca.lab.training.held_out import named
from rca.lab.training.settings import TUNABLE, Bounds
from rca.lab.training.weighting import REAL_SHARE, balanced
from rca.sources.labels import Part
from rca.workers import HERE, Workers, code_digest

Progress = Callable[[str, int, int], None]
#: Part of each row of a head's target in a fold: ``train``, ``calibration``, ``test``, or "" for unused.
Parts = np.ndarray[tuple[int], np.dtype[np.str_]]

DEFAULT_WINDOWS = 3000
#: Variants of each capture, see `rca.lab.training.incidents.varied`.
DEFAULT_VARIANTS = 8
DEFAULT_TRIALS = 20
DEFAULT_FOLDS = 3
#: One group in so many of those that a fold learns from calibrates, about as in a training.
CALIBRATES = 6
#: The first trial of every search, so that a search ends no worse on its own folds.
PRESENT: Values = {name: PARAMETERS[name] for name in TUNABLE}
#: Random trials before the sampler uses the results.
STARTUP_TRIALS = 5


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
        Folder of the trials; an interrupted run continues with them.
    heads : sequence of str
        Heads to tune; all if empty.
    trials : int
        Settings tried in each search.
    n_folds : int
        Outer folds, and inner folds of each.
    variants : int
        Variants of each capture.
    workers, cache
        Without influence on the result.
    progress : callable
        ``(phase, done, total)``.
    """
    import_optuna()
    examples = gathered(
        n_windows, seed, collections, variants=variants, workers=workers, cache=cache, progress=progress
    )
    corpus = stack(each for each in examples if each.part != "test")
    # Every window is learned from in some fold, so its weight is that of a learned one.
    everything: list[Part] = ["train"] * len(corpus.part)
    corpus = replace(corpus, part=tuple(everything))
    corpus = replace(corpus, weight=balanced(corpus, REAL_SHARE))
    wanted = {name: target for name, target in targets(corpus).items() if name in heads or not heads}
    found = tuned(wanted, results, corpus.digest, seed, trials, n_folds, workers=workers, progress=progress)
    options = {"windows": n_windows, "seed": seed, "variants": variants, "trials": trials, "folds": n_folds}
    given = [f"--{option} {value}" for option, value in options.items()]
    given += [f"--collection {name}" for name in named(collections)] + [f"--head {name}" for name in heads]
    return Tuning(" ".join(["rca tune", *given]), corpus.digest, tuple(found))


def tuned(
    wanted: Mapping[str, Target],
    results: Path,
    corpus_sha256: str,
    seed: int,
    trials: int,
    n_folds: int,
    *,
    workers: Workers = HERE,
    progress: Progress = lambda phase, done, total: None,
) -> list[TunedHead]:
    """Search within every outer fold and judge on it; search over all windows only for heads that win."""
    outer: dict[str, list[Parts]] = {}
    inner: dict[str, list[list[Parts]]] = {}
    lacking: dict[str, str] = {}
    for name, target in wanted.items():
        try:
            outer[name] = group_folds(target, n_folds, seed)
            inner[name] = [
                group_folds(target, n_folds, seed + 1, np.isin(each, ("train", "calibration")))
                for each in outer[name]
            ]
        except _TooFewError as error:
            lacking[name] = str(error)
    able = [name for name in wanted if name not in lacking]
    given = (results, [corpus_sha256, seed, n_folds], seed, trials, workers, progress)
    tasks = [(name, folds) for name in able for folds in inner[name]]
    best = _searched(wanted, tasks, *given, phase="searching within each fold")
    found: dict[str, TunedHead] = {}
    fits = _Fits(wanted, tuple((name, [part]) for name in able for part in outer[name]), seed)
    # In each outer fold: the present settings, and those that were found within it.
    settings = [(place, values) for place, own in enumerate(best) for values in (PRESENT, own)]
    judged = list(workers.map(fits.losses, settings))
    for number, name in enumerate(able):
        mine = judged[2 * n_folds * number : 2 * n_folds * (number + 1)]
        present, other = Losses.of(mine[::2]), Losses.of(mine[1::2])
        gain = loss_change(other, present)
        found[name] = TunedHead(name, gain.n, present.mean, gain, None)
    winners = [name for name in able if found[name].wins]
    whole = [(name, group_folds(wanted[name], n_folds, seed + 1)) for name in winners]
    chosen = _searched(wanted, whole, *given, phase="searching over all windows")
    for name, values in zip(winners, chosen, strict=True):
        found[name] = replace(found[name], chosen=values)
    for name, reason in lacking.items():
        found[name] = TunedHead(name, 0, np.nan, UNKNOWN, None, reason)
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
    labels = np.array(target.labels)
    rows = np.arange(labels.size) if within is None else np.flatnonzero(within)

    def split(rows: np.ndarray, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        from sklearn.model_selection import StratifiedGroupKFold

        deal = StratifiedGroupKFold(n, shuffle=True, random_state=seed % 2**31)
        with warnings.catch_warnings():
            # A rare class may be absent from a fold.
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            for learned, tested in deal.split(rows, labels[rows], target.group[rows]):
                yield rows[learned], rows[tested]

    found = []
    try:
        for learned, tested in split(rows, n):
            part = np.full(labels.size, "", dtype="<U11")
            part[tested] = "test"
            # A rare class has to be calibrated, too.
            trained, calibrated = max(
                split(learned, CALIBRATES), key=lambda pair: np.unique(labels[pair[1]]).size
            )
            part[trained], part[calibrated] = "train", "calibration"
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
    wanted: Mapping[str, Target],
    tasks: Sequence[tuple[str, list[Parts]]],
    results: Path,
    depends_on: Sequence[object],
    seed: int,
    trials: int,
    workers: Workers,
    progress: Progress,
    *,
    phase: str,
) -> list[Values]:
    """The best settings for each head and its folds; one trial of every search at a time.

    Each search is an Optuna study in a file of `results`. The sampler's seed depends on the number of
    finished trials only, so an interrupted run continues as it would have.
    """
    optuna = import_optuna()
    space = {name: _distribution(optuna, bounds) for name, bounds in TUNABLE.items()}
    facts = [code_digest(), PARAMETERS, MAX_ROUNDS, PATIENCE, *depends_on]
    studies = []
    if tasks:
        try:
            results.mkdir(parents=True, exist_ok=True)
            backend = optuna.storages.journal.JournalFileBackend(str(results / "tune.journal"))
        except OSError as error:
            raise SourceError(f"cannot write into {results}: {error.strerror or error}") from error
        storage = optuna.storages.JournalStorage(backend)
    for name, folds in tasks:
        sha = hashlib.sha256(repr([name, *facts]).encode())
        for part in folds:
            sha.update(part.tobytes())
        study = optuna.create_study(storage=storage, study_name=sha.hexdigest(), load_if_exists=True)
        # A trial that was interrupted must not count.
        for stale in study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING]):
            study.tell(stale.number, state=optuna.trial.TrialState.FAIL)
        studies.append(study)
    fits = _Fits(wanted, tuple(tasks), seed)
    for number in range(trials):
        lack = [place for place, study in enumerate(studies) if len(_finished(optuna, study)) <= number]
        asked = []
        for place in lack:
            study = studies[place]
            study.sampler = optuna.samplers.TPESampler(
                seed=(seed + number) % 2**31, n_startup_trials=STARTUP_TRIALS
            )
            if number == 0:
                study.enqueue_trial(PRESENT)
            asked.append(study.ask(space))
        losses = workers.map(
            fits.losses, [(place, trial.params) for place, trial in zip(lack, asked, strict=True)]
        )
        for place, trial, each in zip(lack, asked, losses, strict=True):
            studies[place].tell(trial, each.mean)
        progress(phase, number + 1, trials)
    return [min(_finished(optuna, study)[:trials], key=lambda trial: trial.value).params for study in studies]


def _finished(optuna: Any, study: Any) -> list[Any]:
    found: list[Any] = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    return found


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


class Losses(NamedTuple):
    """Log loss of one head on rows that it has not learned, per group; arrays of shape (n_groups,)."""

    summed: FloatArray
    weight: FloatArray

    @property
    def mean(self) -> float:
        """Weighted mean over rows."""
        return float(self.summed.sum() / self.weight.sum())

    @classmethod
    def of(cls, parts: Sequence[Losses]) -> Losses:
        """Losses of disjoint sets of groups together."""
        summed, weight = zip(*parts, strict=True)
        return cls(np.concatenate(summed), np.concatenate(weight))


def held_out_losses(head: FittedHead, target: Target, held: BoolArray) -> Losses:
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
    return Losses(*(np.bincount(group, each).astype(float) for each in (loss, target.weight[held])))


def loss_change(base: Losses, other: Losses, seed: int = 0) -> Estimate:
    """Mean rise of the log loss with its 95 % interval from drawing whole groups."""
    return bootstrap((other.summed - base.summed) / base.weight.mean(), np.random.default_rng(seed))


@dataclass(frozen=True)
class _Fits:
    """Heads with the folds to score them on. It travels to the workers once; a task is a place in it."""

    wanted: Mapping[str, Target]
    tasks: tuple[tuple[str, list[Parts]], ...]
    seed: int

    def losses(self, task: tuple[int, Values]) -> Losses:
        """Losses of settings on the folds, each fitted without its tested groups."""
        place, values = task
        name, folds = self.tasks[place]
        found = []
        for part in folds:
            target = replace(self.wanted[name], part=part)
            found.append(held_out_losses(fit_head(name, target, self.seed, values), target, part == "test"))
        return Losses.of(found)
