"""`rca generalise`: fit a bundle without each cluster or other kind of captures, and let it diagnose them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from rca.diagnosis.bundle import baseline
from rca.errors import InvalidInput, MissingExtra, SourceError
from rca.lab.evaluation.run import Case, Evaluation, EvaluationPlan, evaluate_entries
from rca.lab.training.bundle import write_bundle
from rca.lab.training.classifier_fit import learn
from rca.lab.training.corpus import Corpus, stack
from rca.lab.training.digests import files_digest
from rca.lab.training.examples import gathered
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.heads import MAX_ROUNDS, PARAMETERS, PATIENCE
from rca.lab.training.held_out import named
from rca.lab.training.incidents import learned_incidents
from rca.lab.training.settings import Settings
from rca.lab.training.weighting import REAL_SHARE, balanced
from rca.sources.labels import CollectionEntry, unfelt
from rca.workers import HERE, Workers, code_digest

#: In place of a field of the manifest: the collection itself.
COLLECTION = "collection"
#: With more values of the field, each fold holds out several of them.
MAX_FOLDS = 10
#: Variants of each capture: a third of those of `rca train`, because every fold fits every capture again.
VARIANTS = 8


def generalise(
    n_windows: int,
    seed: int,
    collections: Sequence[Path],
    *,
    by: str = COLLECTION,
    results: Path,
    settings: Settings | None = None,
    workers: Workers = HERE,
    cache: FeatureCache | None = None,
    progress: Callable[[str, int, int], None] = lambda phase, done, total: None,
) -> Evaluation:
    """Fit a bundle without each value of a fact, and judge its answers about the captures with this value.

    Parameters
    ----------
    n_windows, seed : int
        The simulated corpus, as of `rca.lab.training.run.train`. Every bundle learns from it.
    collections : sequence of Path
        Captures. The manifests' part ``test`` is learned from, too, where it is not held out.
    by : str
        The fact: `COLLECTION` or a field of the manifests, such as ``group`` or ``model``. Captures without
        the field are learned from and not tested.
    results : Path
        Folder of finished folds.
    workers, cache
        Without influence on the result.
    progress : callable
        ``(phase, done, total)``.

    Returns
    -------
    Evaluation
        The `source` of a row is the value of its window.

    Raises
    ------
    InvalidInput
        If the captures have fewer than two values.
    """
    try:
        from sklearn.model_selection import GroupKFold
    except ImportError as error:
        raise MissingExtra(
            "held-out fits need scikit-learn", hint="pip install 'straggler-rca[train]'"
        ) from error

    captures = [
        (name, each.entry)
        for name, folder in named(collections).items()
        for each in learned_incidents(folder, every_part=True)
    ]
    values = [name if by == COLLECTION else str(entry.summary.get(by, "")) for name, entry in captures]
    tested = np.flatnonzero(np.array(values) != "")
    groups = [values[place] for place in tested]
    n_folds = min(len(set(groups)), MAX_FOLDS)
    if n_folds < 2:
        raise InvalidInput(
            f"the captures do not differ in {by!r}, so nothing can be held out",
            hint="name several collections, or another field of the manifest with --by",
        )
    examples = gathered(
        n_windows,
        seed,
        collections,
        every_part=True,
        variants=VARIANTS,
        workers=workers,
        cache=cache,
        progress=progress,
    )
    corpus = stack(examples)
    variants = [0 if unfelt(entry.read_label()) else VARIANTS for _, entry in captures]
    owner = np.repeat(np.arange(-1, len(captures)), [n_windows, *variants])
    learned = np.where(np.array(corpus.part) == "test", "train", corpus.part)
    kept = _kept_in(results)
    cases: list[Case] = []
    for done, (_, places) in enumerate(GroupKFold(n_folds).split(tested, groups=groups)):
        progress("fitting and testing, fold by fold", done, n_folds)
        held = tested[places]
        part = np.where(np.isin(owner, held), "test", learned)
        entries = [captures[place][1] for place in held]
        fold = replace(corpus, part=tuple(part.tolist()))
        facts = [code_digest(), fold.digest, PARAMETERS, MAX_ROUNDS, PATIENCE, baseline().model.sha256]
        facts += [files_digest(entry.path) for entry in entries]
        for place, case in zip(held, kept(fold, entries, workers, seed, settings, facts), strict=True):
            cases.append(replace(case, rows=tuple(replace(row, source=values[place]) for row in case.rows)))
    progress("fitting and testing, fold by fold", n_folds, n_folds)
    return Evaluation(EvaluationPlan(), f"fitted without each {by}", cases)


def _kept_in(folder: Path) -> Callable[..., list[Case]]:
    """`_answered`, whose results are kept in a folder."""
    from joblib import Memory

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(f"cannot write into {folder}: {error.strerror or error}") from error
    memory = Memory(folder, verbose=0)
    kept: Callable[..., list[Case]] = memory.cache(_answered, ignore=["corpus", "entries", "workers"])
    return kept


def _answered(
    corpus: Corpus,
    entries: list[CollectionEntry],
    workers: Workers,
    seed: int,
    settings: Settings | None,
    depends_on: Sequence[object],  # noqa: ARG001 - the kept result is named after it
) -> list[Case]:
    """Answers of a bundle that learned from the corpus without its part ``test``."""
    weighted = replace(corpus, weight=balanced(corpus, REAL_SHARE))
    learned = learn(weighted, seed, lambda phase, done, total: None, settings)
    with TemporaryDirectory(prefix="rca-fold-") as folder:
        bundle = Path(folder) / "bundle"
        # No score is about costs, so the bundle keeps the shipped causal mechanisms.
        write_bundle(bundle, learned, baseline().mechanisms, {}, name="fold", version="1")
        return evaluate_entries(entries, EvaluationPlan(bundle=bundle), workers=workers).cases
