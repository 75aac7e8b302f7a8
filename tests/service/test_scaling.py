"""The autoscaler sees what waits: its metric, followed from the manifest to the rows of the database."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.shell.observability.gauges import count
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.store.database import Database

pytestmark = pytest.mark.system

DEPLOY = Path(__file__).parents[2] / "api" / "deploy"
#: The only kind of expression the rule is made of: terms over all replicas, added up.
_TERM = re.compile(r'(sum|max)\((\w+)(?:\{(\w+)="(\w+)"\})?\)')


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def recorded() -> dict[str, str]:
    [group] = read("prometheus/recording.yaml")["groups"]
    [rule] = group["rules"]
    held: dict[str, str] = rule
    return held


def evaluated(expression: str, replicas: Sequence[Metrics]) -> float:
    """What Prometheus would make of it."""
    total = 0.0
    for term in " ".join(expression.split()).split(" + "):
        form = _TERM.fullmatch(term)
        assert form, term
        how, name, label, wanted = form.groups()
        labels = {} if label is None else {label: wanted}
        values = [replica.registry.get_sample_value(name, labels) for replica in replicas]
        assert None not in values, term
        total += {"sum": sum, "max": max}[how](value or 0.0 for value in values)
    return total


def row(state: str) -> DiagnosisRow:
    return DiagnosisRow(state=state, job_id="job", window_start=0.0, window_end=1.0)


def test_the_autoscaler_uses_a_recorded_metric() -> None:
    [metric] = read("kubernetes/autoscaling.yaml")["spec"]["metrics"]
    [offered] = read("prometheus/adapter.yaml")["externalRules"]
    # A number of the whole installation: as one of pods, each would be taken to have all of it.
    assert metric["type"] == "External"
    assert metric["external"]["target"]["type"] == "AverageValue"
    assert metric["external"]["metric"]["name"] == offered["name"]["as"]
    assert offered["seriesQuery"] == recorded()["record"]


def test_a_growing_queue_needs_more_replicas(tmp_path: Path) -> None:
    scaling = read("kubernetes/autoscaling.yaml")["spec"]
    each = float(scaling["metrics"][0]["external"]["target"]["averageValue"])
    replicas = [Metrics(), Metrics()]
    database = Database(f"sqlite:///{tmp_path / 'rca.db'}")
    database.upgrade()

    def in_hand() -> float:
        for replica in replicas:
            count(database, replica)
        return evaluated(recorded()["expr"], replicas)

    assert in_hand() == 0
    with database.session() as session:
        session.add_all([row("queued") for _ in range(11)] + [row("running"), row("done"), row("failed")])
    assert in_hand() == 12
    assert math.ceil(in_hand() / each) > scaling["minReplicas"]
    replicas[0].in_progress.inc(3)
    replicas[1].in_progress.inc(2)
    assert in_hand() == 17
    with database.session() as session:
        session.add_all([row("queued") for _ in range(70)])
    assert math.ceil(in_hand() / each) >= scaling["maxReplicas"]
    database.close()
