"""Calls to the model registry, in a child process whose program is `serve`.

MLflow takes seconds and hundreds of megabytes to import, and its calls may hang. In a child process neither
affects the process that answers requests. Each call gets the URI of the registry first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from rca.errors import InvalidInput, MissingExtra
from rca_api.shell.observability import logs
from rca_api.shell.processes.child_process import Parent

#: Ends of an interval in the names of MLflow metrics.
_ENDS = ("value", "low", "high", "n")
_log = structlog.stdlib.get_logger("rca_api.models")


def _registry(uri: str) -> Any:
    from rca.lab.training.registry import Registry

    return Registry.existing(uri)


def versions(uri: str) -> list[dict[str, Any]]:
    """Every version, the newest first."""
    registry = _registry(uri)
    return [_document(each) for each in registry.with_scores(registry.versions())]


def version(uri: str, name: str) -> dict[str, Any] | None:
    """One version by number or alias; None if there is none."""
    registry = _registry(uri)
    found = registry.find(name)
    return None if found is None else _scored(registry, found)


def card(uri: str, name: str) -> str | None:
    """The model card of a version, Markdown."""
    from rca.lab.training.run_record import CARD_FILE

    registry = _registry(uri)
    found = registry.find(name)
    return None if found is None else registry.document(found, CARD_FILE)


def aliases(uri: str) -> dict[str, dict[str, Any]]:
    """Version, digest and last retry request behind each alias; cheap enough to call every few seconds."""
    from rca.lab.training.registry import MODEL, REQUESTED, SHA256
    from rca.lab.training.tracking import open_store

    registry = _registry(uri)
    with open_store(uri):
        client = registry.client()
        if not client.search_registered_models(f"name = '{MODEL}'"):
            return {}
        held = client.get_registered_model(MODEL).aliases
        tags = {number: client.get_model_version(MODEL, number).tags for number in set(held.values())}
    return {
        alias: {
            "version": int(number),
            "sha256": tags[number].get(SHA256, ""),
            "asked": tags[number].get(REQUESTED, ""),
        }
        for alias, number in held.items()
    }


def fetch(uri: str, name: str, output: str) -> str:
    """Copy a version's bundle to a folder that appears complete or not at all."""
    from rca.lab.training.registry import copy_bundle

    registry = _registry(uri)
    try:
        copy_bundle(registry, registry.get(name), Path(output))
    except OSError:
        # Another replica that shares the folder may have been faster.
        if not Path(output).exists():
            raise
    return output


def promote(uri: str, name: str, by: str, force: str | None) -> dict[str, Any]:
    """Promote by the kept verdict; ``unjudged`` where there is none against the present champion."""
    from rca.lab.training.promotion import has_passed, pass_judged
    from rca.lab.training.registry import CHAMPION

    registry = _registry(uri)
    found, champion = registry.get(name), registry.find(CHAMPION)
    if champion is not None and champion.number == found.number:
        raise InvalidInput(f"version {found.number} is the champion already")
    passed = has_passed(found, champion)
    if not passed and force is None:
        return {"unjudged": passed is None, "promoted": False, "version": _scored(registry, found)}
    pass_judged(registry, found, by=by, forced=force)
    promoted = registry.get(str(found.number))
    return {"unjudged": False, "promoted": True, "version": _scored(registry, promoted)}


def rollback(uri: str, reason: str, expected: int) -> dict[str, Any]:
    """Move the champion back to the version before it, if it still is the expected one."""
    was, now = _registry(uri).rollback(reason, expected)
    return {"from": was.number, "to": None if now is None else now.number}


def retry(uri: str, name: str) -> dict[str, Any]:
    """Request another trial of a version, so that replicas that rejected it try it once more."""
    registry = _registry(uri)
    registry.request_again(registry.get(name))
    return _scored(registry, registry.get(name))


def _scored(registry: Any, found: Any) -> dict[str, Any]:
    return _document(*registry.with_scores([found]))


def _document(found: Any) -> dict[str, Any]:
    return {
        "version": found.number,
        "aliases": list(found.aliases),
        "sha256": found.sha256,
        "created_at": found.created.isoformat(),
        "mlflow_run_id": found.run_id,
        "tags": found.tags,
        "scores": scores_of(found.scores),
        "gate": gate_of(found.tags),
    }


def scores_of(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Scores of a run by name, each with the keys ``value``, ``low``, ``high`` and ``n`` that are known.

    Parameters
    ----------
    metrics : mapping of str to float
        As MLflow names them: ``<score>_value``, ``<score>_low``, ``<score>_high``, ``<score>_n``.
    """
    found: dict[str, dict[str, float]] = {}
    for name in sorted(metrics):
        score, _, end = name.rpartition("_")
        if end in _ENDS and f"{score}_value" in metrics:
            found.setdefault(score, {})[end] = metrics[name]
    return found


def gate_of(tags: Mapping[str, str]) -> dict[str, Any] | None:
    """The gate's verdict kept with a version; None if it was never compared."""
    from rca.lab.training.promotion import AGAINST, BY, FORCED, OUTCOME, REASONS

    if OUTCOME not in tags:
        return None
    return {
        "outcome": tags[OUTCOME],
        "passed": tags[OUTCOME] != "worse",
        "against": tags.get(AGAINST, ""),
        "reasons": tags.get(REASONS, ""),
        "forced": tags.get(FORCED),
        "promoted_by": tags.get(BY),
    }


def serve(parent: Parent, uri: str, log_level: str) -> None:
    """Program of a child process that makes the calls of its parent."""
    limit_mlflow()
    logs.configure(log_level)
    _import()
    parent.serve(uri)


def limit_mlflow() -> None:
    """Let a call to a tracking server end soon. By default MLflow retries it for minutes."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")


def _import() -> None:
    """Import MLflow before the first call, because a call has a time limit."""
    from rca.lab.training.tracking import import_pyfunc

    try:
        import_pyfunc()
    except MissingExtra as error:
        # Every call raises it again.
        _log.error("the registry cannot be followed", reason=error.message, hint=error.hint)
