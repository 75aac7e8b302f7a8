"""`rca train` end to end: corpus, heads, thresholds, mechanisms, bundle, honest test, tracking."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rca.classify.classifier import HEADS
from rca.classify.heads import Head
from rca.evaluation.simulated import evaluate_simulated
from rca.evaluation.summary import rounded, summarise
from rca.training.bundle import write_bundle
from rca.training.causal_rows import mechanism_rows
from rca.training.corpus import Corpus, simulated_examples, stack
from rca.training.heads import PARAMETERS, fit_heads
from rca.training.split import part_of
from rca.training.thresholds import choose_thresholds

Progress = Callable[[str, int, int], None]

#: What the shipped baseline was trained with.
DEFAULT_WINDOWS = 28000
DEFAULT_SEED = 20261121


@dataclass(frozen=True)
class TrainingResult:
    """What a run produced."""

    bundle: Path
    sha256: str
    corpus_digest: str
    test_scores: dict[str, Any]
    run_id: str | None


def train(
    output: Path,
    *,
    n_windows: int = DEFAULT_WINDOWS,
    seed: int = DEFAULT_SEED,
    processes: int = 2,
    tracking_uri: str | None = None,
    bundle_version: str = "1",
    progress: Progress = lambda phase, done, total: None,
) -> TrainingResult:
    """Train, evaluate on held-out scenarios, write the bundle and log the run.

    Parameters
    ----------
    output : Path
        Bundle folder to write.
    n_windows, seed : int
        The simulated corpus; the same pair gives the same bundle, byte for byte.
    processes : int
        For simulation and evaluation; does not influence the result.
    tracking_uri : str, optional
        MLflow store; None logs nowhere.
    progress : callable
        ``(phase, done, total)``.
    """
    from rca.causal.fit import fit_mechanisms

    corpus = _corpus(n_windows, seed, processes, progress)
    heads = fit_heads(corpus, seed, lambda text: progress(text, 0, 0))
    document = {name: head.entry() for name, head in heads.items()}
    loaded = {name: Head.load(name, document[name], heads[name].text, HEADS[name]) for name in heads}
    thresholds = choose_thresholds(corpus, loaded)
    progress("fitting causal mechanisms with DoWhy", 0, 0)
    mechanisms, causal_report = fit_mechanisms(mechanism_rows(corpus, seed), seed)
    provenance = _provenance(n_windows, seed, corpus)
    sha256 = write_bundle(output, heads, thresholds, mechanisms, provenance, version=bundle_version)
    scores = _test(corpus, output, processes, progress)
    run_id = None
    if tracking_uri is not None:
        run_id = _log(tracking_uri, corpus, output, thresholds, provenance, scores, causal_report)
    return TrainingResult(output, sha256, corpus.digest, scores, run_id)


def _corpus(n_windows: int, seed: int, processes: int, progress: Progress) -> Corpus:
    examples = []
    for position, each in enumerate(simulated_examples(n_windows, seed, processes=processes), start=1):
        examples.append(each)
        progress("simulating and extracting features", position, n_windows)
    return stack(examples)


def _test(corpus: Corpus, bundle: Path, processes: int, progress: Progress) -> dict[str, Any]:
    """End-to-end scores on the test scenarios, none of which any fit or threshold has seen."""
    seeds = [int(group.rsplit("-", 1)[1]) for group in corpus.group if part_of(group) == "test"]
    judged = evaluate_simulated(
        seeds,
        bundle,
        processes=processes,
        progress=lambda done, total: progress("diagnosing held-out scenarios", done, total),
    )
    return rounded(summarise(judged))


def _provenance(n_windows: int, seed: int, corpus: Corpus) -> dict[str, Any]:
    libraries = ("straggler-rca", "lightgbm", "dowhy", "scikit-learn", "numpy", "scipy")
    return {
        "command": f"rca train --windows {n_windows} --seed {seed}",
        "corpus_sha256": corpus.digest,
        "n_windows": n_windows,
        "seed": seed,
        "versions": {name: version(name) for name in libraries} | {"python": platform.python_version()},
    }


def _log(
    uri: str,
    corpus: Corpus,
    bundle: Path,
    thresholds: dict[str, float],
    provenance: dict[str, Any],
    scores: dict[str, Any],
    causal_report: dict[str, Any],
) -> str:
    from rca.training.tracking import log_run

    metrics = {
        f"test_{name}_{key}".replace("@", "_at_"): value
        for name, row in scores.items()
        for key, value in row.items()
        if value == value
    }
    parameters = {f"lightgbm_{key}": value for key, value in PARAMETERS.items()}
    parameters |= {f"threshold_{key}": value for key, value in thresholds.items()}
    parameters |= {key: provenance[key] for key in ("n_windows", "seed")}
    return log_run(
        uri,
        parameters=parameters,
        metrics=metrics,
        digest=corpus.digest,
        bundle=bundle,
        documents={"causal_report.json": causal_report, "provenance.json": provenance},
    )
