"""The process that talks to the registry: ``python -m rca_api.models.fetch URI``, a companion of the service.

MLflow takes seconds and hundreds of megabytes to import, and its calls may hang; here it does neither to a
process that answers requests. It says ``{"ready": true}`` first, once MLflow is imported. Every message it
gets is a question ``{"ask": name, ...}``, answered by ``{"answer": ...}`` or ``{"problem": {"code",
"detail"}}``, one after the other.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from rca.errors import InvalidInput, MissingExtra, RcaError
from rca_api import logs
from rca_api.models.describe import gate_of, scores_of
from rca_api.subprocess_rpc import REPORT, Owner

_log = structlog.stdlib.get_logger("rca_api.models")


def _registry(uri: str) -> Any:
    from rca.training.registry import Registry

    return Registry.existing(uri)


def versions(uri: str) -> list[dict[str, Any]]:
    """Every version, the newest first."""
    registry = _registry(uri)
    return [_told(each) for each in registry.with_scores(registry.versions())]


def version(uri: str, name: str) -> dict[str, Any] | None:
    """One version by number or alias; None if there is none."""
    registry = _registry(uri)
    found = registry.find(name)
    return None if found is None else _document(registry, found)


def card(uri: str, name: str) -> str | None:
    """The model card of a version, Markdown."""
    from rca.training.record import CARD_FILE

    registry = _registry(uri)
    found = registry.find(name)
    return None if found is None else registry.document(found, CARD_FILE)


def aliases(uri: str) -> dict[str, dict[str, Any]]:
    """Version, digest and last request behind each alias; cheap enough to be asked every few seconds."""
    from rca.training.registry import ASKED, MODEL, SHA256
    from rca.training.tracking import store_errors

    registry = _registry(uri)
    with store_errors(uri):
        client = registry.client()
        if not client.search_registered_models(f"name = '{MODEL}'"):
            return {}
        held = client.get_registered_model(MODEL).aliases
        tags = {number: client.get_model_version(MODEL, number).tags for number in set(held.values())}
    return {
        alias: {
            "version": int(number),
            "sha256": tags[number].get(SHA256, ""),
            "asked": tags[number].get(ASKED, ""),
        }
        for alias, number in held.items()
    }


def fetch(uri: str, name: str, output: str) -> str:
    """Copy a version's bundle to a folder that appears complete or not at all."""
    from rca.training.registry import copy_bundle

    registry = _registry(uri)
    try:
        copy_bundle(registry, registry.get(name), Path(output))
    except OSError:
        # Another replica that shares the folder was faster.
        if not Path(output).exists():
            raise
    return output


def promote(uri: str, name: str, by: str, force: str | None) -> dict[str, Any]:
    """Promote by the kept verdict; ``unjudged`` where there is none against the present champion."""
    from rca.training.promotion import has_passed, pass_judged
    from rca.training.registry import CHAMPION

    registry = _registry(uri)
    found, champion = registry.get(name), registry.find(CHAMPION)
    if champion is not None and champion.number == found.number:
        raise InvalidInput(f"version {found.number} is the champion already")
    passed = has_passed(found, champion)
    if not passed and force is None:
        return {"unjudged": passed is None, "promoted": False, "version": _document(registry, found)}
    pass_judged(registry, found, by=by, forced=force)
    promoted = registry.get(str(found.number))
    return {"unjudged": False, "promoted": True, "version": _document(registry, promoted)}


def rollback(uri: str, reason: str, expected: int) -> dict[str, Any]:
    """Move the champion back to the version before it, if it still is the expected one."""
    was, now = _registry(uri).rollback(reason, expected)
    return {"from": was.number, "to": None if now is None else now.number}


def retry(uri: str, name: str) -> dict[str, Any]:
    """Note that a version is asked for again, so that who has rejected it tries it once more."""
    registry = _registry(uri)
    registry.ask_again(registry.get(name))
    return _document(registry, registry.get(name))


QUESTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (versions, version, card, aliases, fetch, promote, rollback, retry)
}


def _document(registry: Any, found: Any) -> dict[str, Any]:
    return _told(*registry.with_scores([found]))


def _told(found: Any) -> dict[str, Any]:
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


def main(arguments: list[str] | None = None) -> None:
    """Answer questions until the owner leaves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri")
    parser.add_argument("--log-level", default="info")
    parser.add_argument(REPORT, type=int, required=True)
    given = parser.parse_args(arguments)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    logs.configure(given.log_level)
    owner = Owner(given.report)
    _import()
    owner.tell({"ready": True})
    for question in owner.heard():
        owner.tell(_answered(given.uri, **question))


def _import() -> None:
    """Before any question, because it may take longer than whoever asks it waits."""
    from rca.training.tracking import import_pyfunc

    try:
        import_pyfunc()
    except MissingExtra as error:
        # Whoever asks is told.
        _log.error("the registry cannot be followed", reason=error.message, hint=error.hint)


def _answered(uri: str, ask: str, **details: Any) -> dict[str, Any]:
    try:
        return {"answer": QUESTIONS[ask](uri, **details)}
    except RcaError as error:
        return {"problem": {"code": error.code, "detail": error.message, "hint": error.hint}}
    except Exception as error:
        _log.exception("the registry could not be asked")
        return {"problem": {"code": "source-error", "detail": f"unexpected {type(error).__name__}"}}


if __name__ == "__main__":
    main()
