"""`rca train` end to end: corpus, heads, thresholds, mechanisms, bundle, honest test, tracking."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rca.classify.classifier import HEADS
from rca.classify.heads import Head
from rca.evaluation.run import Plan, evaluate_entries
from rca.evaluation.simulated import evaluate_simulated
from rca.evaluation.summary import rounded, summarise
from rca.telemetry.labels import read_collection
from rca.training.bundle import write_bundle
from rca.training.causal_rows import innocent_rows, mechanism_rows
from rca.training.corpus import Corpus, simulated_examples, stack
from rca.training.heads import PARAMETERS, fit_heads
from rca.training.incidents import incident_examples, incidents
from rca.training.interval_margins import interval_margins
from rca.training.thresholds import choose_thresholds

Progress = Callable[[str, int, int], None]

#: What the shipped baseline was trained with.
DEFAULT_WINDOWS = 28000
DEFAULT_SEED = 20261121
#: Share of the weight that real windows get; see docs/decisions for how it was chosen.
REAL_SHARE = 0.3


@dataclass(frozen=True)
class TrainingResult:
    """What a run produced.

    Attributes
    ----------
    test_scores : dict
        On held-out simulated scenarios.
    real_scores : dict of str to dict
        On the test part of each collection of real windows, never averaged with the others.
    """

    bundle: Path
    sha256: str
    corpus_digest: str
    test_scores: dict[str, Any]
    real_scores: dict[str, dict[str, Any]]
    run_id: str | None


def train(
    output: Path,
    *,
    n_windows: int = DEFAULT_WINDOWS,
    seed: int = DEFAULT_SEED,
    collections: Sequence[Path] = (),
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
        The simulated corpus; the same pair and collections give the same bundle, byte for byte.
    collections : sequence of Path
        Folders of real labelled windows to learn from and be tested on as well.
    processes : int
        For simulation and evaluation; does not influence the result.
    tracking_uri : str, optional
        MLflow store; None logs nowhere.
    progress : callable
        ``(phase, done, total)``.
    """
    from rca.causal.fit import fit_mechanisms

    corpus = _corpus(n_windows, seed, collections, processes, progress)
    heads = fit_heads(corpus, seed, lambda text: progress(text, 0, 0))
    document = {name: head.entry() for name, head in heads.items()}
    loaded = {name: Head.load(name, document[name], heads[name].text, HEADS[name]) for name in heads}
    thresholds = choose_thresholds(corpus, loaded)
    progress("fitting causal mechanisms with DoWhy", 0, 0)
    mechanisms, causal_report = fit_mechanisms(
        mechanism_rows(corpus, seed), seed, innocent_rows(corpus, seed)
    )
    provenance = _provenance(n_windows, seed, collections, corpus)
    write_bundle(output, heads, thresholds, mechanisms, provenance, version=bundle_version)
    margins, covered = interval_margins(
        corpus,
        output,
        processes=processes,
        progress=lambda done, total: progress("measuring the intervals of held-out costs", done, total),
    )
    mechanisms = replace(mechanisms, margins=margins, report={**mechanisms.report, "intervals": covered})
    sha256 = write_bundle(output, heads, thresholds, mechanisms, provenance, version=bundle_version)
    scores = _test(corpus, output, processes, progress)
    real = {folder.name: _test_real(folder, output, processes, progress) for folder in collections}
    run_id = None
    if tracking_uri is not None:
        all_scores = {"test": scores} | {f"real_{name}": found for name, found in real.items()}
        run_id = _log(tracking_uri, corpus, output, thresholds, provenance, all_scores, causal_report)
    return TrainingResult(output, sha256, corpus.digest, scores, real, run_id)


def _corpus(
    n_windows: int, seed: int, collections: Sequence[Path], processes: int, progress: Progress
) -> Corpus:
    examples = []
    for position, each in enumerate(simulated_examples(n_windows, seed, processes=processes), start=1):
        examples.append(each)
        progress("simulating and extracting features", position, n_windows)
    for folder in collections:
        examples += incident_examples(
            folder,
            seed,
            processes=processes,
            progress=lambda done, total: progress("varying real windows", done, total),
        )
    return stack(examples, REAL_SHARE)


def _test(corpus: Corpus, bundle: Path, processes: int, progress: Progress) -> dict[str, Any]:
    """End-to-end scores on the test scenarios, none of which any fit or threshold has seen."""
    held = [
        group
        for group, part, real in zip(corpus.group, corpus.part, corpus.real, strict=True)
        if part == "test" and not real
    ]
    seeds = [int(group.rsplit("-", 1)[1]) for group in held]
    judged = evaluate_simulated(
        seeds,
        bundle,
        processes=processes,
        progress=lambda done, total: progress("diagnosing held-out scenarios", done, total),
    )
    return rounded(summarise(judged))


def _test_real(folder: Path, bundle: Path, processes: int, progress: Progress) -> dict[str, Any]:
    """Scores on a collection's test part; empty where it has none."""
    held = [each.entry for each in incidents(read_collection(folder)) if each.part == "test"]
    if not held:
        return {}
    found = evaluate_entries(
        held,
        Plan(bundle=bundle),
        processes=processes,
        progress=lambda done, total: progress("diagnosing held-out real windows", done, total),
    )
    return rounded(summarise([row.judged for row in found.product_rows]))


def _provenance(n_windows: int, seed: int, collections: Sequence[Path], corpus: Corpus) -> dict[str, Any]:
    libraries = ("straggler-rca", "lightgbm", "dowhy", "scikit-learn", "numpy", "scipy")
    return {
        "command": " ".join([f"rca train --windows {n_windows} --seed {seed}", *_named(collections)]),
        "corpus_sha256": corpus.digest,
        "n_windows": n_windows,
        "n_real_windows": sum(corpus.real),
        "seed": seed,
        "versions": {name: version(name) for name in libraries} | {"python": platform.python_version()},
    }


def _named(collections: Sequence[Path]) -> list[str]:
    # By name, not by path: where a collection lies on this machine must not change the bundle.
    return [f"--collection {folder.name}" for folder in collections]


def _log(
    uri: str,
    corpus: Corpus,
    bundle: Path,
    thresholds: dict[str, float],
    provenance: dict[str, Any],
    scores: dict[str, dict[str, Any]],
    causal_report: dict[str, Any],
) -> str:
    from rca.training.tracking import log_run

    metrics = {
        f"{source}_{name}_{key}".replace("@", "_at_"): value
        for source, table in scores.items()
        for name, row in table.items()
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
