"""As much of `robusta.api` as the example of an action uses, with the same names and members.

The action has run with robusta-api 0.53.0 itself, which needs too many packages for these tests.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "robusta"


class ActionParams(BaseModel):
    """Base of the parameters of actions."""


class MarkdownBlock(BaseModel):
    text: str

    def __init__(self, text: str) -> None:
        super().__init__(text=text)


class PrometheusAlert(BaseModel):
    endsAt: datetime  # noqa: N815  (names of Alertmanager)
    generatorURL: str  # noqa: N815
    startsAt: datetime  # noqa: N815
    fingerprint: str | None = ""
    status: str
    labels: dict[Any, Any]
    annotations: dict[Any, Any]


@dataclass
class PrometheusKubernetesAlert:
    alert: PrometheusAlert | None = None
    enrichments: list[list[Any]] = field(default_factory=list)

    def add_enrichment(self, enrichment_blocks: list[Any]) -> None:
        self.enrichments.append(enrichment_blocks)


def action(function: Callable[..., Any]) -> Callable[..., Any]:
    """As Robusta does when it registers an action: its parameters must be annotated with classes."""
    event, params = inspect.signature(function).parameters.values()
    assert issubclass(event.annotation, PrometheusKubernetesAlert)
    assert issubclass(params.annotation, BaseModel)
    return function


def module() -> ModuleType:
    """A module to be imported as `robusta.api`."""
    made = ModuleType("robusta.api")
    for each in (ActionParams, MarkdownBlock, PrometheusKubernetesAlert, action):
        setattr(made, each.__name__, each)
    return made


def fired(**labels: str) -> PrometheusKubernetesAlert:
    """An alert as Robusta hands it to an action."""
    return PrometheusKubernetesAlert(
        alert=PrometheusAlert.model_validate(
            {
                "status": "firing",
                "labels": labels,
                "annotations": {"summary": "steps are slow"},
                "startsAt": "2026-11-18T11:00:00Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "http://prometheus/graph",
                "fingerprint": "c4ca4238a0b92382",
            }
        )
    )


def playbook(patch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the example, imported with this in place of Robusta."""
    patch.setitem(sys.modules, "robusta", ModuleType("robusta"))
    patch.setitem(sys.modules, "robusta.api", module())
    file = EXAMPLE / "straggler_rca_playbooks" / "diagnose.py"
    spec = importlib.util.spec_from_file_location("straggler_rca_playbooks.diagnose", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def act(held: ModuleType, url: str, api_key: str = "secret", **labels: str) -> str:
    """Let the action handle an alert; gives the text that it adds to the message."""
    alert = fired(**labels)
    held.diagnose_training_job(alert, held.DiagnoseParams(url=url, api_key=api_key))
    ((block,),) = alert.enrichments
    text: str = block.text
    return text
