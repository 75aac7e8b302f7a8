"""The notebook that retrains: whole, and with a model that is there already in place of the training."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_up_corpus import made_up_corpus
from registered import bundle_copy

from rca.diagnosis import Bundle
from rca.lab.training import bundle_comparison
from rca.lab.training import run as training
from rca.lab.training.data_facts import data_facts
from rca.lab.training.held_out import held_out_rows
from rca.lab.training.model_card import Card
from rca.lab.training.run import Trained
from rca.workers import HERE, Workers

pytest.importorskip("mlflow")

pytestmark = [
    pytest.mark.system,
    pytest.mark.usefixtures("comparisons_here"),
    # MLflow asks SQLAlchemy for it.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]
NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "retraining.py"
#: Thresholds that next to nothing reaches.
DEAF = dict.fromkeys(("fault", "fault_costly", "fault_whole", "fault_unseen"), 0.9999)


def without_fitting(
    output: Path, *, n_windows: int, seed: int, collections: Sequence[Path], workers: Workers = HERE, **_: Any
) -> Trained:
    """The shipped model with thresholds that miss faults, tested and described as a trained one."""
    bundle_copy(output, "deaf", **DEAF)
    bundle, corpus = Bundle.load(output), made_up_corpus(12)
    card = Card(
        name=bundle.model.name,
        version="1",
        sha256=bundle.model.sha256,
        provenance=bundle.manifest["provenance"],
        facts=data_facts(corpus, n_windows, seed, collections),
        thresholds=bundle.classifier.thresholds,
        rows=held_out_rows(corpus, output, collections, workers, lambda *_: None),
        causal_report=bundle.mechanisms.report,
    )
    return Trained(output, card, {"seed": seed})


def told(capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(NOTEBOOK), run_name="__main__")
    return capsys.readouterr().out


def test_a_worse_model_is_said_to_be_worse_and_its_run_has_a_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "fit", without_fitting)
    monkeypatch.setattr(bundle_comparison, "LATENCY_REPEATS", 1)
    lines = told(capsys).splitlines()
    assert "version 1 is worse than the shipped model" in lines
    assert "not promoted, the shipped model stays in use" in lines
    at = lines.index("200 simulated, 3 of my-incidents, seed 3")
    assert lines[at + 1].startswith("  Worse than the shipped bundle: simulated: failure_mode_accuracy -")
    assert lines[-1] == "version 1 (challenger): worse than the shipped model"


@pytest.mark.long
def test_a_model_of_200_windows_is_worse_than_the_shipped_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "version 1 is worse than the shipped model" in told(capsys).splitlines()
