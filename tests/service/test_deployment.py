"""The files people deploy with name only what exists: settings, commands, routes, metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rca.commands import COMMANDS, SERVICE_COMMANDS
from rca_api.app import create_app
from rca_api.settings import Settings

DEPLOY = Path(__file__).parents[2] / "api" / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
#: Of Prometheus itself, and the suffixes it adds.
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def documents(path: Path) -> list[dict[str, Any]]:
    return [held for held in yaml.safe_load_all(path.read_text()) if held]


def every(held: Any, key: str) -> Iterator[Any]:
    """All values of `key`, however deep."""
    if isinstance(held, dict):
        if key in held:
            yield held[key]
        for value in held.values():
            yield from every(value, key)
    elif isinstance(held, list):
        for value in held:
            yield from every(value, key)


@pytest.fixture(scope="module")
def exposed() -> set[str]:
    """Names of all series the service can have."""
    names = set()
    for family in create_app(Settings()).state.parts.metrics.registry.collect():
        names |= {family.name, f"{family.name}_total"} if family.type == "counter" else {family.name}
    return names


def named_metrics(text: str) -> set[str]:
    return {_SUFFIX.sub("", name) for name in re.findall(r"\brca_[a-z0-9_]+", text)}


def test_every_variable_is_a_setting() -> None:
    texts = [path.read_text() for path in (*MANIFESTS, DEPLOY / "compose.yaml", DEPLOY / "Containerfile")]
    named = set(re.findall(r"\bRCA_[A-Z_]+", "\n".join(texts))) - {"RCA_PORT"}
    known = {f"RCA_{name.upper()}" for name in Settings.model_fields}
    assert named
    assert named - known == set()


def test_every_command_exists() -> None:
    files = [*MANIFESTS, DEPLOY / "compose.yaml"]
    lines = [line for path in files for key in ("command", "args") for line in every(documents(path), key)]
    ours = [line for line in lines if isinstance(line, list) and line[0] == "rca"]
    assert ours
    assert {line[1] for line in ours} <= {*COMMANDS, *SERVICE_COMMANDS}


def test_every_probe_asks_a_route_that_exists() -> None:
    asked = {probe["path"] for path in MANIFESTS for probe in every(documents(path), "httpGet")}
    assert {"/healthz", "/readyz"} <= asked
    assert asked <= set(create_app().openapi()["paths"])


def test_pods_run_locked_down_and_with_limits() -> None:
    pods = [pod for path in MANIFESTS for pod in every(documents(path), "template")]
    assert len(pods) == 2
    for pod in pods:
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"requests", "limits"} <= set(container["resources"])


def test_a_pod_has_time_to_finish_what_it_has_begun() -> None:
    from rca.commands.serve import _SHUTDOWN_SECONDS

    pod = documents(DEPLOY / "kubernetes" / "service.yaml")[0]["spec"]["template"]["spec"]
    sleep = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > sleep + _SHUTDOWN_SECONDS


def test_every_manifest_is_in_the_kustomization() -> None:
    listed = set(documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]["resources"])
    assert listed == {path.name for path in MANIFESTS} - {"kustomization.yaml"}


def test_it_scales_by_a_metric_that_exists(exposed: set[str]) -> None:
    scaling = documents(DEPLOY / "kubernetes" / "autoscaling.yaml")[0]
    names = {metric["name"] for metric in every(scaling, "metric")}
    assert names
    assert names <= exposed


def test_alerts_ask_for_metrics_that_exist(exposed: set[str]) -> None:
    rules = documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"][0]["rules"]
    for rule in rules:
        assert named_metrics(rule["expr"]) <= exposed, rule["alert"]
        assert {"summary", "action"} <= set(rule["annotations"]), rule["alert"]


def test_the_dashboard_asks_for_metrics_that_exist(exposed: set[str]) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert asked
    for expression in asked:
        assert named_metrics(expression) <= exposed, expression
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_alerts_name_problem_codes_that_exist() -> None:
    from rca_api.problems import CATALOGUE

    text = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    assert set(re.findall(r'code="([^"]+)"', text)) <= set(CATALOGUE)
