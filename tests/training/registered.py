"""Registered bundles without training: copies of the shipped one, some of them spoilt on purpose."""

from __future__ import annotations

import hashlib
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from rca.diagnosis import Bundle
from rca.lab.training.promotion import FACTS_FILE
from rca.lab.training.registration import register
from rca.lab.training.registry import CORPUS, SHA256, Registry
from rca.lab.training.run_record import run_name
from rca.lab.training.tracking import log_run

SHIPPED = Path(str(files("rca_models"))) / "baseline"


def bundle_copy(folder: Path, version: str, **thresholds: float) -> Path:
    """The shipped bundle under another version, with other decision thresholds."""
    shutil.copytree(SHIPPED, folder)
    heads = orjson.loads((folder / "heads.json").read_bytes())
    heads["thresholds"] |= thresholds
    content = orjson.dumps(heads)
    (folder / "heads.json").write_bytes(content)
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    manifest["version"] = version
    manifest["files"]["heads.json"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
    return folder


def facts(collections: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a run says that it saw."""
    parts = {"train": 60, "calibration": 12, "validation": 14, "test": 14}
    return {
        "corpus_sha256": "c" * 64,
        "simulated": {"windows": 100, "seed": 1, "parts": parts, "modes": {"healthy": 100}},
        "collections": collections or {},
    }


def add_version(uri: str, bundle: Path, collections: dict[str, Any] | None = None) -> int:
    """Log a run of the bundle and register it; the version's number."""
    seen = facts(collections)
    run_id = log_run(
        uri,
        name=run_name(seen),
        parameters={"seed": 1},
        metrics={"test_failure_mode_accuracy_value": 0.9, "test_failure_mode_accuracy_low": 0.8},
        facts=seen,
        bundle=bundle,
        documents={FACTS_FILE: seen},
    )
    tags = {SHA256: Bundle.load(bundle).model.sha256, CORPUS: seen["corpus_sha256"]}
    return register(Registry(uri), run_id, bundle, tags, "made for a test")
