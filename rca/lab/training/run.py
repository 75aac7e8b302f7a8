"""`rca train` end to end: corpus, heads, thresholds, mechanisms, bundle, held-out test, card, registry."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rca.arrays import FloatArray
from rca.causal.mechanisms import Mechanisms
from rca.diagnosis.bundle import ALARM, Bundle
from rca.errors import SourceError
from rca.lab.training import alarm_fit
from rca.lab.training.bundle import NAME, refuse_to_replace, with_alarm, write_bundle
from rca.lab.training.causal_rows import healthy_rank_rows, mechanism_rows
from rca.lab.training.classifier_fit import Learned, learn
from rca.lab.training.corpus import Corpus, stack
from rca.lab.training.data_facts import data_facts
from rca.lab.training.earlier_trees import EarlierTrees
from rca.lab.training.examples import gathered
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.heads import PARAMETERS
from rca.lab.training.healthy_augmentation import PER_CORPUS_WINDOWS, healthy_windows
from rca.lab.training.held_out import SIMULATED, held_out_rows, named, totals
from rca.lab.training.interval_margins import interval_margins
from rca.lab.training.model_card import Card
from rca.lab.training.run_record import record
from rca.lab.training.settings import Settings
from rca.lab.training.tracking import check_store
from rca.lab.training.weighting import REAL_SHARE, balanced
from rca.workers import HERE, Workers

Progress = Callable[[str, int, int], None]

#: Simulated windows of a training that starts from nothing. More gain hardly anything.
DEFAULT_WINDOWS = 96000
DEFAULT_SEED = 20261121
#: Name of the phase in which the registry is written.
RECORDING = "recording the run in MLflow"


@dataclass(frozen=True)
class TrainedBundle:
    """What a run produced.

    Attributes
    ----------
    test_scores : dict
        On held-out simulated scenarios.
    real_scores : dict of str to dict
        On the test part of each collection of real windows, never averaged with the others.
    card : str
        The model card, Markdown.
    run_id : str or None
        MLflow run, if tracked.
    version : int or None
        Registered version, if registered.
    """

    bundle: Path
    sha256: str
    corpus_digest: str
    test_scores: dict[str, Any]
    real_scores: dict[str, dict[str, Any]]
    card: str
    run_id: str | None
    version: int | None


@dataclass(frozen=True)
class Trained:
    """A bundle that was written and tested.

    Attributes
    ----------
    card : Card
        Everything that was measured.
    parameters : dict
        Options and chosen values of the run, for MLflow.
    """

    bundle: Path
    card: Card
    parameters: dict[str, Any]


def train(
    output: Path,
    *,
    n_windows: int = DEFAULT_WINDOWS,
    seed: int = DEFAULT_SEED,
    collections: Sequence[Path] = (),
    workers: Workers = HERE,
    cache: FeatureCache | None = None,
    tracking_uri: str | None = None,
    registered: bool = True,
    bundle_version: str = "2",
    settings: Settings | None = None,
    continue_from: Path | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> TrainedBundle:
    """Train, write the bundle, test it on held-out windows, log the run and register the bundle.

    Parameters
    ----------
    output : Path
        Bundle folder to write.
    n_windows, seed : int
        The simulated corpus; the same pair and collections give the same bundle, byte for byte, on processors
        with the same vector instructions.
    collections : sequence of Path
        Folders of real labelled windows to learn from and be tested on as well.
    workers : Workers
        For simulation and evaluation; does not influence the result.
    cache : FeatureCache, optional
        Features of earlier runs; does not influence the result.
    tracking_uri : str, optional
        MLflow store; None neither logs nor registers.
    registered : bool
        Make the bundle the registered challenger, if the run is tracked.
    settings : mapping of str to mapping, optional
        LightGBM's settings by head, from `rca.lab.training.settings.read_settings`.
    continue_from : Path, optional
        Bundle whose trees new ones are added to; see `rca.lab.training.earlier_trees`.
    progress : callable
        ``(phase, done, total)``.
    """
    if tracking_uri is not None:
        check_store(tracking_uri)
    trained = fit(
        output,
        n_windows=n_windows,
        seed=seed,
        collections=collections,
        workers=workers,
        cache=cache,
        bundle_version=bundle_version,
        settings=settings,
        continue_from=continue_from,
        progress=progress,
    )
    run_id, number = None, None
    if tracking_uri is not None:
        progress(RECORDING, 0, 0)
        run_id, number = record(tracking_uri, output, trained.card, trained.parameters, registered=registered)
    scores = {source: totals(rows) for source, rows in trained.card.rows.items()}
    return TrainedBundle(
        bundle=output,
        sha256=trained.card.sha256,
        corpus_digest=trained.card.facts["corpus_sha256"],
        test_scores=scores.pop(SIMULATED),
        real_scores=scores,
        card=trained.card.to_markdown(),
        run_id=run_id,
        version=number,
    )


def fit(
    output: Path,
    *,
    n_windows: int = DEFAULT_WINDOWS,
    seed: int = DEFAULT_SEED,
    collections: Sequence[Path] = (),
    workers: Workers = HERE,
    cache: FeatureCache | None = None,
    bundle_version: str = "2",
    settings: Settings | None = None,
    continue_from: Path | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Trained:
    """Write and test the bundle without recording it; parameters as of `train`."""
    _can_be_written(output)
    earlier = None if continue_from is None else EarlierTrees.read(continue_from)
    examples = gathered(n_windows, seed, collections, workers=workers, cache=cache, progress=progress)
    corpus = stack(examples)
    corpus = replace(corpus, weight=balanced(corpus, REAL_SHARE))
    more_healthy = healthy_windows(
        n_windows // PER_CORPUS_WINDOWS,
        seed,
        workers=workers,
        cache=cache,
        progress=partial(progress, "simulating more healthy jobs"),
    )
    fitted = _fit(corpus, seed, settings, more_healthy, earlier, workers, progress)
    alarm_windows = min(n_windows, alarm_fit.DEFAULT_WINDOWS)
    alarm = alarm_fit.fit_alarm(alarm_windows, seed, collections, workers, progress)
    learned = replace(fitted.learned, heads=fitted.learned.heads | {ALARM: alarm})
    fitted = replace(fitted, learned=learned)
    provenance = _provenance(n_windows, seed, collections, corpus, settings, earlier)
    provenance |= _distributed(fitted.learned)
    # A bundle without interval margins is not published: an interrupted run leaves the old bundle in place.
    with TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as folder:
        unmeasured = Path(folder) / "bundle"
        _written(unmeasured, fitted, provenance, bundle_version)
        fitted = _with_margins(fitted, corpus, unmeasured, workers, progress)
    sha256 = _written(output, fitted, provenance, bundle_version)
    card = Card(
        name=NAME,
        version=bundle_version,
        sha256=sha256,
        provenance=provenance,
        facts=data_facts(corpus, n_windows, seed, collections),
        thresholds=fitted.learned.thresholds,
        rows=held_out_rows(corpus, output, collections, workers, progress),
        causal_report=fitted.mechanisms.report,
    )
    return Trained(output, card, _parameters(fitted.learned.thresholds, provenance))


def fit_alarm_only(
    bundle: Path,
    output: Path,
    *,
    n_windows: int = alarm_fit.DEFAULT_WINDOWS,
    seed: int = DEFAULT_SEED,
    collections: Sequence[Path] = (),
    workers: Workers = HERE,
    progress: Progress = lambda phase, done, total: None,
) -> str:
    """Write a bundle with a new alarm of latenesses and everything else as before; return its SHA-256.

    Parameters
    ----------
    bundle, output : Path
        The bundle to take, and the folder to write; they may be the same.
    n_windows, seed, collections, workers, progress
        As of `train`. Minutes are enough, because the alarm learns from few numbers of a window.
    """
    _can_be_written(output)
    taken = Bundle.load(bundle)
    alarm = alarm_fit.fit_alarm(n_windows, seed, collections, workers, progress)
    # A second fit replaces the first one, so it is of the same bundle.
    of = taken.manifest["provenance"].get(ALARM, {}).get("of", taken.model.sha256)
    command = [f"rca train --alarm-of {of[:12]} --windows {n_windows} --seed {seed}"]
    provenance = {
        "of": of,
        "command": " ".join([*command, *_named(collections)]),
        "n_windows": n_windows,
        "seed": seed,
        "versions": {name: version(name) for name in ("straggler-rca", "lightgbm", "numpy")},
    }
    return with_alarm(bundle, output, alarm, provenance)


def _can_be_written(output: Path) -> None:
    """Refuse a folder that cannot be written before the training, not after it."""
    refuse_to_replace(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-"):
            pass
    except OSError as error:
        raise SourceError(f"{output}: cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True)
class _Fitted:
    """Everything learned from a corpus."""

    learned: Learned
    mechanisms: Mechanisms


def _fit(
    corpus: Corpus,
    seed: int,
    settings: Settings | None,
    more_healthy: FloatArray,
    earlier: EarlierTrees | None,
    workers: Workers,
    progress: Progress,
) -> _Fitted:
    """The classifier, and the causal mechanisms with their refutation."""
    from rca.lab.training.mechanism_fit import fit_mechanisms

    learned = learn(corpus, seed, progress, settings, more_healthy, earlier, workers)
    mechanisms = fit_mechanisms(
        mechanism_rows(corpus, seed),
        seed,
        healthy_rank_rows(corpus, seed),
        partial(progress, "refuting causal mechanisms with DoWhy"),
    )
    return _Fitted(learned, mechanisms)


def _written(output: Path, fitted: _Fitted, provenance: dict[str, Any], bundle_version: str) -> str:
    return write_bundle(output, fitted.learned, fitted.mechanisms, provenance, version=bundle_version)


def _with_margins(
    fitted: _Fitted, corpus: Corpus, bundle: Path, workers: Workers, progress: Progress
) -> _Fitted:
    """The same with interval margins, which are fitted on the costs of held-out scenarios."""
    margins, covered = interval_margins(
        corpus,
        bundle,
        workers=workers,
        progress=partial(progress, "measuring the intervals of held-out costs"),
    )
    report = {**fitted.mechanisms.report, "intervals": covered}
    return replace(fitted, mechanisms=replace(fitted.mechanisms, margins=margins, report=report))


def _provenance(
    n_windows: int,
    seed: int,
    collections: Sequence[Path],
    corpus: Corpus,
    settings: Settings | None,
    earlier: EarlierTrees | None = None,
) -> dict[str, Any]:
    libraries = ("straggler-rca", "lightgbm", "dowhy", "scikit-learn", "numpy", "scipy")
    # Values, not the file's name: the provenance alone must reproduce the bundle.
    tuned = {"settings": {name: dict(held) for name, held in settings.items()}} if settings else {}
    before = {} if earlier is None else {"continues_sha256": earlier.sha256}
    command = [f"rca train --windows {n_windows} --seed {seed}", *_named(collections)]
    if earlier is not None:
        command.append(f"--continue-from {earlier.sha256[:12]}")
    return (
        tuned
        | before
        | {
            "command": " ".join(command),
            "corpus_sha256": corpus.digest,
            "n_windows": n_windows,
            "n_real_windows": sum(corpus.real),
            "n_innocent_windows": n_windows // PER_CORPUS_WINDOWS,
            "seed": seed,
            "versions": {name: version(name) for name in libraries} | {"python": platform.python_version()},
        }
    )


def _distributed(learned: Learned) -> dict[str, Any]:
    """Heads that were fitted on a cluster: their trees depend on its number of workers."""
    found = {name: head.distribution for name, head in learned.heads.items()}
    held = {name: each.as_dict() for name, each in found.items() if each is not None}
    return {"distributed_heads": held} if held else {}


def _named(collections: Sequence[Path]) -> list[str]:
    # By name, not by path: the place of a collection must not change the bundle.
    return [f"--collection {name}" for name in named(collections)]


def _parameters(thresholds: dict[str, float], provenance: dict[str, Any]) -> dict[str, Any]:
    found = {f"lightgbm_{key}": value for key, value in PARAMETERS.items()}
    tuned = provenance.get("settings", {})
    found |= {f"lightgbm_{head}_{key}": value for head in tuned for key, value in tuned[head].items()}
    found |= {f"threshold_{key}": value for key, value in thresholds.items()}
    return found | {key: provenance[key] for key in ("command", "n_windows", "n_real_windows", "seed")}
