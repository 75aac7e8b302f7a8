"""The files people deploy with name only what exists: settings, commands, routes, metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

from rca.commands import COMMANDS, SERVICE_COMMANDS
from rca_api.diagnoses import dispatcher
from rca_api.incidents.series import IncidentSeries
from rca_api.shell.app import create_app
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.settings.settings import Settings

DEPLOY = Path(__file__).parents[2] / "api" / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DASK = sorted((DEPLOY / "kubernetes" / "dask").glob("*.yaml"))
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


def test_every_probe_uses_an_existing_route() -> None:
    asked = {probe["path"] for path in MANIFESTS for probe in every(documents(path), "httpGet")}
    assert {"/healthz", "/readyz"} <= asked
    assert asked <= set(create_app().openapi()["paths"])


def test_pods_run_locked_down_and_with_limits() -> None:
    pods = [pod for path in (*MANIFESTS, *DASK) for pod in every(documents(path), "template")]
    assert len(pods) == 4
    for pod in pods:
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"requests", "limits"} <= set(container["resources"])


def test_a_pod_has_time_to_finish_what_it_has_begun() -> None:
    pod = documents(DEPLOY / "kubernetes" / "service.yaml")[0]["spec"]["template"]["spec"]
    sleep = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    needed = Settings(deadline_seconds=60).drain_seconds + dispatcher.SHUTDOWN_SECONDS
    assert pod["terminationGracePeriodSeconds"] > sleep + needed
    composed = documents(DEPLOY / "compose.yaml")[0]["services"]["service"]
    assert int(composed["stop_grace_period"].removesuffix("s")) > needed


def test_every_manifest_is_in_the_kustomization() -> None:
    listed = set(documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]["resources"])
    assert listed == {path.name for path in MANIFESTS} - {"kustomization.yaml"}
    listed = set(documents(DEPLOY / "kubernetes" / "dask" / "kustomization.yaml")[0]["resources"])
    assert listed == {path.name for path in DASK} - {"kustomization.yaml"}


def test_dask_is_started_with_options_that_it_has() -> None:
    pytest.importorskip("distributed", reason="the extra [scale] is not installed")
    from distributed.cli import dask_scheduler, dask_worker

    composed = documents(DEPLOY / "compose.yaml")[0]["services"]
    lines = [line for path in DASK for line in every(documents(path), "args")]
    lines += [composed[name]["command"] for name in ("dask-scheduler", "dask-worker")]
    assert len(lines) == 4
    for program, command, *arguments in lines:
        assert program == "dask"
        known = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}[command]
        options = {option for held in known.params for option in (*held.opts, *held.secondary_opts)}
        assert {each for each in arguments if each.startswith("--")} <= options


def test_all_parts_reach_the_scheduler_under_one_address() -> None:
    scheduler = next(held for path in DASK for held in documents(path) if held["kind"] == "Service")
    [port] = scheduler["spec"]["ports"]
    address = f"tcp://{scheduler['metadata']['name']}:{port['port']}"
    [arguments] = every(documents(DEPLOY / "kubernetes" / "dask" / "workers.yaml"), "args")
    [patch] = documents(DEPLOY / "kubernetes" / "dask" / "kustomization.yaml")[0]["patches"]
    assert address in arguments
    assert yaml.safe_load(patch["patch"])[0]["value"] == address


def test_it_scales_by_metrics_that_exist(exposed: set[str]) -> None:
    rules = documents(DEPLOY / "prometheus" / "recording.yaml")[0]["groups"][0]["rules"]
    for rule in rules:
        assert named_metrics(rule["expr"])
        assert named_metrics(rule["expr"]) <= exposed


def test_alerts_go_by_a_job_that_is_scraped() -> None:
    named = set(re.findall(r'job="([^"]+)"', (DEPLOY / "prometheus" / "alerts.yaml").read_text()))
    assert named
    for path in (DEPLOY / "prometheus").glob("scrape-*.yaml"):
        assert {job["job_name"] for job in documents(path)[0]["scrape_configs"]} == named, path


def test_prometheus_finds_the_port_that_the_service_has() -> None:
    [scraped] = documents(DEPLOY / "prometheus" / "scrape-kubernetes.yaml")[0]["scrape_configs"]
    [kept] = [each for each in scraped["relabel_configs"] if each.get("action") == "keep"]
    service = next(
        held for held in documents(DEPLOY / "kubernetes" / "service.yaml") if held["kind"] == "Service"
    )
    assert kept["regex"] == f"{service['metadata']['name']};{service['spec']['ports'][0]['name']}"
    namespace = documents(DEPLOY / "kubernetes" / "namespace.yaml")[0]["metadata"]["name"]
    assert scraped["kubernetes_sd_configs"][0]["namespaces"]["names"] == [namespace]


def test_the_alert_on_slow_answers_looks_at_answers_alone() -> None:
    rules = documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"][0]["rules"]
    [slow] = [rule["expr"] for rule in rules if rule["alert"] == "StragglerRcaSlow"]
    [(name, selector)] = re.findall(r"(\w+)_bucket\{([^}]*)\}", slow)
    asked = dict(re.findall(r'(\w+)="([^"]*)"', selector))
    metrics = Metrics()
    metrics.request_done("GET", "/v1/diagnoses", 200, 0.001)
    metrics.request_done("POST", "/v1/diagnoses", 202, 0.01)
    metrics.request_done("POST", "/v1/diagnoses", 503, 0.001)
    metrics.request_done("POST", "/v1/diagnoses", 200, 7.0)
    assert metrics.registry.get_sample_value(f"{name}_count", asked) == 1
    assert metrics.registry.get_sample_value(f"{name}_sum", asked) == 7.0


def test_documented_services_can_be_reached() -> None:
    ports = set(every(documents(DEPLOY / "kubernetes" / "network.yaml"), "port"))
    assert {53, 443, 5000, 5432, 6379, 4317, 4318} <= ports


def test_the_worker_is_probed_by_the_file_it_touches() -> None:
    pod = documents(DEPLOY / "kubernetes" / "worker.yaml")[0]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    file = container["args"][container["args"].index("--alive-file") + 1]
    assert f"find {file} " in container["livenessProbe"]["exec"]["command"][-1]
    assert file.startswith(tuple(f"{mount['mountPath']}/" for mount in container["volumeMounts"]))
    worker = documents(DEPLOY / "compose.yaml")[0]["services"]["worker"]
    assert worker["command"] == container["args"]
    assert f"find {file} " in worker["healthcheck"]["test"][-1]


def test_composed_services_have_limits_and_folders_of_their_user() -> None:
    services = documents(DEPLOY / "compose.yaml")[0]["services"]
    lasting = {name: held for name, held in services.items() if name != "worker-image"}
    assert all("mem_limit" in held for held in lasting.values())
    user = re.search(r"^USER (\d+)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert user
    for name in ("migrate", "service", "worker"):
        mounts = dict(each.split(":") for each in services[name]["tmpfs"])
        assert "mode=1777" in mounts["/tmp"].split(",")  # noqa: S108  (a path in a container)
        assert {f"uid={user[1]}", f"gid={user[1]}"} <= set(mounts["/var/lib/rca"].split(","))


@pytest.mark.system
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_rules_for_machines_fire_for_faults_and_for_nothing_else() -> None:
    asked = ["promtool", "test", "rules", "gpu-alerts-test.yaml"]
    ran = subprocess.run(asked, cwd=DEPLOY / "prometheus", capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.system
@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")
def test_the_route_of_the_guide_is_one_that_alertmanager_takes(tmp_path: Path) -> None:
    page = (DEPLOY.parents[1] / "docs" / "how-to" / "on-call.md").read_text()
    found = re.search(r"```yaml\n# alertmanager.yml\n(.*?)```", page, re.DOTALL)
    assert found is not None
    (tmp_path / "alertmanager.yml").write_text(found[1])
    ran = subprocess.run(
        ["amtool", "check-config", "alertmanager.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_alerts_ask_for_metrics_that_exist(exposed: set[str]) -> None:
    rules = documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"][0]["rules"]
    for rule in rules:
        assert named_metrics(rule["expr"]) <= exposed, rule["alert"]
        assert {"summary", "action"} <= set(rule["annotations"]), rule["alert"]


def test_the_dashboard_uses_existing_metrics(exposed: set[str]) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert asked
    for expression in asked:
        assert named_metrics(expression) <= exposed, expression
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_dashboard_of_incidents_is_one_that_grafana_loads_and_uses_existing_series() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "incidents.json").read_text())
    schema = {
        "type": "object",
        "required": ["uid", "title", "schemaVersion", "panels", "annotations", "templating", "time"],
        "properties": {
            "uid": {"type": "string", "maxLength": 40},
            "panels": {
                "type": "array",
                "items": {
                    "required": ["id", "type", "title", "gridPos", "datasource", "targets", "fieldConfig"],
                    "properties": {
                        "type": {"enum": ["stat", "table", "timeseries", "row"]},
                        "gridPos": {"required": ["h", "w", "x", "y"]},
                        "targets": {"items": {"required": ["refId", "expr"]}},
                    },
                },
            },
            "annotations": {
                "properties": {"list": {"items": {"required": ["name", "datasource", "enable"]}}}
            },
        },
    }
    jsonschema.validate(dashboard, schema)
    series = {
        family.name
        for family in IncidentSeries(SimpleNamespace(scalars=lambda _: []), 1).collect()  # type: ignore[arg-type]
    }
    text = json.dumps(dashboard)
    assert set(re.findall(r"rca_incident_[a-z_]+", text)) <= series
    assert {each["gridPos"]["x"] + each["gridPos"]["w"] for each in dashboard["panels"]} <= {6, 12, 24}


def test_alerts_name_problem_codes_that_exist() -> None:
    from rca_api.shell.requests.problems import CATALOGUE

    text = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    assert set(re.findall(r'code="([^"]+)"', text)) <= set(CATALOGUE)
