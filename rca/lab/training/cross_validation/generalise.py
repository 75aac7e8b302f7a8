"""`rca generalise`: fit a bundle without each kind of job, and let it diagnose what was held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rca.diagnosis.bundle import baseline
from rca.errors import SourceError
from rca.lab.evaluation.judged_rows import JudgedRow
from rca.lab.evaluation.run import EvaluationPlan, evaluate_entries
from rca.lab.evaluation.simulated import evaluate_simulated
from rca.lab.training.bundle import write_bundle
from rca.lab.training.classifier_fit import learn
from rca.lab.training.corpus import Corpus
from rca.lab.training.cross_validation.folds import Fold, folds
from rca.lab.training.cross_validation.pool import Pool, build_pool
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.heads import MAX_ROUNDS, PARAMETERS, PATIENCE, targets
from rca.lab.training.held_out import SIGNALS, named
from rca.lab.training.settings import Settings
from rca.lab.training.weighting import REAL_SHARE, balanced
from rca.workers import HERE, Workers, code_digest

Progress = Callable[[str, int, int], None]

#: Enough for a few dozen windows of every cause at every severity.
DEFAULT_WINDOWS = 3000
#: Tested simulated windows of each cause and severity.
DEFAULT_PER_CELL = 20
#: Variants of each capture: a third of those of `rca train`, because most folds fit every capture again.
DEFAULT_VARIANTS = 8


@dataclass(frozen=True)
class FoldAnswers:
    """Answers of one fold's bundle.

    Attributes
    ----------
    split, held_out : str
        As of `rca.lab.training.cross_validation.folds.Fold`.
    learned : int
        Windows that the bundle learned from, variants included.
    rows : tuple of JudgedRow
        One per tested window and set of signals.
    lacking : str
        Why there are no rows; "" if there are.
    """

    split: str
    held_out: str
    learned: int
    rows: tuple[JudgedRow, ...] = ()
    lacking: str = ""


@dataclass(frozen=True)
class Generalisation:
    """Answers of all folds, and the command that reproduces them."""

    command: str
    corpus_sha256: str
    folds: tuple[FoldAnswers, ...]


def generalise(
    n_windows: int,
    seed: int,
    collections: Sequence[Path],
    *,
    results: Path,
    per_cell: int = DEFAULT_PER_CELL,
    variants: int = DEFAULT_VARIANTS,
    settings: Settings | None = None,
    workers: Workers = HERE,
    cache: FeatureCache | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Generalisation:
    """Fit a bundle for every fold and judge its answers about what it has not learned.

    Parameters
    ----------
    n_windows, seed : int
        The simulated corpus, as of `rca.lab.training.run.train`.
    collections : sequence of Path
        Captures; without captures only simulated windows are tested. The folds decide what is learned from,
        the manifests' ``split`` does not.
    results : Path
        Folder of finished folds.
    per_cell : int
        Tested simulated windows of each cause and severity.
    variants : int
        Variants of each learned capture.
    settings : mapping, optional
        LightGBM's settings by head.
    workers, cache
        Without influence on the result.
    progress : callable
        ``(phase, done, total)``.
    """
    pool = build_pool(
        n_windows,
        seed,
        collections,
        variants=variants,
        workers=workers,
        cache=cache,
        progress=progress,
    )
    todo, found = folds(pool, per_cell), []
    scored = _kept_in(results)
    depends_on = [pool.digest, code_digest(), PARAMETERS, MAX_ROUNDS, PATIENCE, seed, baseline().model.sha256]
    for done, fold in enumerate(todo):
        progress("fitting and testing, fold by fold", done, len(todo))
        progress(f"{fold.split}: {fold.held_out}", 0, 0)
        found.append(scored(pool, fold, seed, settings, workers, depends_on))
    progress("fitting and testing, fold by fold", len(todo), len(todo))
    options = {"windows": n_windows, "seed": seed, "per-cell": per_cell, "variants": variants}
    given = [f"--{name} {value}" for name, value in options.items()]
    given += [f"--collection {name}" for name in named(collections)]
    return Generalisation(" ".join(["rca generalise", *given]), pool.corpus.digest, tuple(found))


def what_lacks(corpus: Corpus) -> str:
    """The first part that has no windows for a head; "" if every head can be fitted."""
    for name, target in targets(corpus).items():
        # Only the alarm thresholds of the failure mode need validation windows.
        for part in ("train", "calibration", "validation") if name == "mode" else ("train", "calibration"):
            if not (target.part == part).any():
                return f"no {part} windows for the head {name}"
    return ""


def _kept_in(folder: Path) -> Callable[..., FoldAnswers]:
    """`_scored`, whose results are kept in a folder."""
    from joblib import Memory

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(f"cannot write into {folder}: {error.strerror or error}") from error
    kept: Callable[..., FoldAnswers] = Memory(folder, verbose=0).cache(_scored, ignore=["pool", "workers"])
    return kept


def _scored(
    pool: Pool,
    fold: Fold,
    seed: int,
    settings: Settings | None,
    workers: Workers,
    depends_on: Sequence[object],  # noqa: ARG001 - the kept result is named after it
) -> FoldAnswers:
    """Judged rows of the tested windows, with every set of signals."""
    corpus = replace(pool.corpus, part=fold.part)
    corpus = replace(corpus, weight=balanced(corpus, REAL_SHARE))
    if lacking := what_lacks(corpus):
        return FoldAnswers(fold.split, fold.held_out, int(fold.learned.sum()), lacking=lacking)
    tested = [pool.origins[position] for position in fold.tested]
    seeds = [origin.seed for origin in tested if origin.seed is not None]
    entries = [origin.entry for origin in tested if origin.entry is not None]
    learned = learn(corpus, seed, lambda text: None, settings)
    rows: list[JudgedRow] = []
    with TemporaryDirectory(prefix="rca-fold-") as folder:
        bundle = Path(folder) / "bundle"
        # No score is about costs, so the bundle keeps the shipped causal mechanisms.
        write_bundle(bundle, learned, baseline().mechanisms, {}, name="fold", version="1")
        if seeds:
            found, *_ = evaluate_simulated(seeds, [bundle], signals=SIGNALS, workers=workers)
            rows += found
        if entries:
            plan = EvaluationPlan(signals=SIGNALS, bundle=bundle)
            rows += evaluate_entries(entries, plan, workers=workers).rows
    return FoldAnswers(fold.split, fold.held_out, int(fold.learned.sum()), tuple(rows))
