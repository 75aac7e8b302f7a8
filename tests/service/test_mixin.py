"""The Prometheus mixin has the rules and dashboards of the other files, with what a site configures."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.for_each import for_each

DEPLOY = Path(__file__).parents[2] / "api" / "deploy"
CONFIG = "{ _config+:: { serviceSelector: 'job=\"rca\"', runbookURLPattern: 'https://wiki/%s' } }"
PARTS = {"alerts": "prometheusAlerts", "rules": "prometheusRules", "dashboards": "grafanaDashboards"}


def rules_of(*names: str) -> list[dict[str, Any]]:
    return [
        rule
        for name in names
        for group in yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["groups"]
        for rule in group["rules"]
    ]


def made(part: str, config: str = "{}") -> Any:
    jsonnet = pytest.importorskip("_jsonnet", reason="jsonnet evaluates mixins")
    path = DEPLOY / "mixin" / "mixin.libsonnet"
    return json.loads(jsonnet.evaluate_snippet("test", f"((import '{path}') + {config}).{PARTS[part]}"))


def test_every_alert_says_what_it_means_and_how_bad_it_is() -> None:
    for rule in rules_of("alerts.yaml", "gpu-alerts.yaml"):
        assert {"summary"} < set(rule["annotations"]) <= {"summary", "description", "action"}, rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket", "warning"), rule["alert"]


@pytest.mark.system
def test_the_mixin_has_all_alerts_rules_and_dashboards() -> None:
    names = [rule["alert"] for group in made("alerts")["groups"] for rule in group["rules"]]
    assert names == [rule["alert"] for rule in rules_of("alerts.yaml", "gpu-alerts.yaml")]
    records = [rule for group in made("rules")["groups"] for rule in group["rules"]]
    assert records == rules_of("recording.yaml")
    boards = made("dashboards")
    # Fixed ids, so that an update replaces a dashboard.
    assert sorted(board["uid"] for board in boards.values()) == sorted(
        json.loads(path.read_text())["uid"] for path in (DEPLOY / "grafana").glob("*.json")
    )


@pytest.mark.system
@for_each("config", ["{}", CONFIG])
def test_alerts_of_the_mixin_have_what_mixins_have(config: str, tmp_path: Path) -> None:
    found = made("alerts", config)
    for rule in (rule for group in found["groups"] for rule in group["rules"]):
        assert {"summary", "description"} <= set(rule["annotations"]), rule["alert"]
        if config == CONFIG:
            assert rule["annotations"]["runbook_url"] == f"https://wiki/{rule['alert']}"
            assert 'job="straggler-rca"' not in rule["expr"]
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(found))
    if shutil.which("promtool") is not None:
        asked = ["promtool", "check", "rules", str(tmp_path / "alerts.yaml")]
        ran = subprocess.run(asked, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
