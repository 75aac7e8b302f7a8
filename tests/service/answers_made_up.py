"""Windows and answers as processes of the pool hand them over, without a pool."""

from __future__ import annotations

from typing import Any

from rca.diagnosis.result import ModelVersion
from rca_api.diagnoses.work import BlamedNode, DiagnosisAnswer, MetricFacts, StoredWindow
from rca_api.shell.store.base import new_id


def kept(name: str = "w", **changes: Any) -> StoredWindow:
    """A stored window whose digest is made of `name`."""
    values: dict[str, Any] = {
        "digest": name.ljust(64, "0"),
        "n_bytes": 100,
        "job_id": "job",
        "window_id": None,
        "start": 1.7e9,
        "end": 1.7e9 + 60,
        "world_size": 4,
        "nodes": ["n0", "n1"],
    }
    return StoredWindow(**values | changes)


def facts(**changes: Any) -> MetricFacts:
    """What is watched of a diagnosis in which nothing is unusual."""
    values: dict[str, Any] = {
        "model": ModelVersion(name="baseline", version="1", sha256="0" * 64),
        "confidence": 0.9,
        "abstention": None,
        "out_of_distribution": False,
        "features_outside": (),
        "missing_signals": (),
        "usual": None,
    }
    return MetricFacts(**values | changes)


def answer(
    diagnosis_id: str | None = None,
    *,
    blames: tuple[tuple[str, str | None], ...] = (),
    watched: MetricFacts | None = None,
) -> DiagnosisAnswer:
    """A diagnosis that puts causes on nodes."""
    return DiagnosisAnswer(
        diagnosis_id=diagnosis_id or new_id(),
        content=b"{}",
        document=b"{}",
        failure_mode="fail_slow" if blames else "healthy",
        abstained=False,
        seconds_per_step=0.1,
        model_sha256="0" * 64,
        causes=tuple(cause for cause, _ in blames),
        blames=tuple(
            BlamedNode(place, cause, node, "infrastructure", 0.9, 0.1)
            for place, (cause, node) in enumerate(blames, 1)
        ),
        facts=watched or facts(),
    )
