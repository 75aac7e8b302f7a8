"""What is read when Prometheus asks, what is counted in the database, and how labels stay few."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from answers_made_up import answer, facts
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from rca.diagnosis.result import ModelVersion
from rca.features import WINDOW_FEATURES
from rca.features.resource_evidence import missing_resources
from rca.features.work import OWN_PHASES
from rca_api.diagnoses.tables import DiagnosisRow, WindowRow
from rca_api.shell import health
from rca_api.shell.app import create_app
from rca_api.shell.observability import tracing
from rca_api.shell.observability.drift import SIGNALS
from rca_api.shell.observability.gauges import count, resident_bytes
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database, StoreError
from rca_api.shell.store.schema_check import SchemaCheck
from rca_api.training_runs import repository
from rca_api.training_runs.repository import Terms

ONE = ModelVersion(name="baseline", version="1", sha256="a" * 64)
TWO = ModelVersion(name="baseline", version="2", sha256="b" * 64, registry_version=7)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    registry: CollectorRegistry = metrics.registry
    return registry.get_sample_value(name, labels)


def row(state: str, **columns: Any) -> DiagnosisRow:
    return DiagnosisRow(state=state, job_id="job", window_start=0.0, window_end=1.0, **columns)


def test_rows_that_wait_are_counted_and_no_longer_when_they_are_done(database: Database) -> None:
    metrics = Metrics()
    with database.session() as session:
        session.add_all([row("queued"), row("queued"), row("done"), row("failed")])
        session.add_all([WindowRow(digest=each * 64, job_id="job", n_bytes=700) for each in "ab"])
    count(database, metrics)
    assert value(metrics, "rca_diagnoses_rows", state="queued") == 2
    assert value(metrics, "rca_diagnoses_rows", state="running") == 0
    assert value(metrics, "rca_diagnoses_rows", state="done") is None
    assert value(metrics, "rca_stored_windows") == 2
    assert value(metrics, "rca_window_store_bytes") == 1400
    with database.session() as session:
        for held in session.query(DiagnosisRow):
            held.state = "done"
    count(database, metrics)
    assert value(metrics, "rca_diagnoses_rows", state="queued") == 0


def test_a_store_without_windows_has_no_bytes(database: Database) -> None:
    metrics = Metrics()
    count(database, metrics)
    assert value(metrics, "rca_window_store_bytes") == 0


def test_the_age_of_the_last_heartbeat_is_a_gauge_while_a_run_is_running(database: Database) -> None:
    metrics = Metrics()
    with database.session() as session:
        run_id = repository.create(session, "train", {}, now=now()).id
    count(database, metrics)
    assert value(metrics, "rca_training_run_heartbeat_age_seconds") == 0
    with database.session() as session:
        assert repository.claim(session, "worker", now() - timedelta(minutes=10), Terms())
    count(database, metrics)
    age = value(metrics, "rca_training_run_heartbeat_age_seconds")
    assert age == pytest.approx(600, abs=30)
    with database.session() as session:
        repository.finish(session, run_id, "worker", "succeeded", now())
    count(database, metrics)
    assert value(metrics, "rca_training_run_heartbeat_age_seconds") == 0


def test_failures_of_the_database_are_counted() -> None:
    metrics = Metrics()
    away = Database("postgresql://rca@127.0.0.1:9/rca", metrics.database_failures.inc)
    with pytest.raises(StoreError):
        count(away, metrics)
    assert value(metrics, "rca_database_failures_total") == 1


def test_what_an_answer_says_of_itself_is_counted() -> None:
    metrics = Metrics()
    feature = WINDOW_FEATURES[3]
    odd = facts(
        out_of_distribution=True,
        features_outside=(feature,),
        missing_signals=("phases",),
        abstention="too_short",
    )
    metrics.diagnosed(answer(watched=odd))
    metrics.diagnosed(answer())
    assert value(metrics, "rca_out_of_distribution_windows_total") == 1
    assert value(metrics, "rca_features_outside_total", feature=feature) == 1
    assert value(metrics, "rca_missing_signals_total", signal="phases") == 1
    assert value(metrics, "rca_abstentions_total", reason="too_short") == 1


def test_an_unknown_name_makes_no_series() -> None:
    metrics = Metrics()
    metrics.diagnosed(answer(watched=facts(missing_signals=("made up",))))
    assert value(metrics, "rca_missing_signals_total", signal="made up") is None
    assert value(metrics, "rca_missing_signals_total", signal="other") == 1


def test_every_signal_that_can_be_missing_has_its_series() -> None:
    class Nothing:
        """Evidence of no resource at all."""

        import numpy as np

        from rca.features.resource_evidence import RESOURCES

        versus_peers = versus_past = np.full((2, len(RESOURCES)), np.nan)

    nothing: Any = Nothing
    assert {*OWN_PHASES, *missing_resources(nothing), "phases", "communication_wait_seconds"} == set(SIGNALS)


def test_readiness_and_metrics_name_the_bundle_that_answers_now(tmp_path: Path) -> None:
    parts = State.build(Settings(data_dir=tmp_path, processes=1))
    new = BundleRef(tmp_path, TWO.sha256, 2)
    assert not health.check_model(parts.pool).ready
    parts.pool.loaded(parts.models.champion, ONE)
    parts.pool.loaded(new, TWO)

    def named(role: str) -> list[str]:
        found = [family for family in parts.metrics.registry.collect() if family.name == "rca_bundle_info"]
        shown = [sample.labels for family in found for sample in family.samples]
        return [labels["version"] + labels["registry_version"] for labels in shown if labels["role"] == role]

    assert (health.check_model(parts.pool).detail, named("champion"), named("challenger")) == (
        "baseline 1 (aaaaaaaaaaaa)",
        ["1"],
        [],
    )
    parts.models.challenge(parts.models.champion)
    parts.models.swap(new)
    # A request that began before the swap ends with the old bundle.
    parts.metrics.diagnosed(answer(watched=facts(model=ONE)))
    assert (health.check_model(parts.pool).detail, named("champion"), named("challenger")) == (
        "baseline 2 (bbbbbbbbbbbb, registry version 7)",
        ["27"],
        ["1"],
    )


def test_refused_requests_are_counted_by_the_limit(tmp_path: Path) -> None:
    parts = State.build(Settings(data_dir=tmp_path, processes=1, queue_limit=0, max_buffered_bytes=10))
    with parts.admission.body(None) as ticket, parts.admission.work():
        with pytest.raises(ProblemError, match="being diagnosed"), parts.admission.work():
            pass
        ticket.hold(8)
        assert value(parts.metrics, "rca_held_bytes") == 8
        with pytest.raises(ProblemError, match="memory"):
            ticket.hold(3)
    assert value(parts.metrics, "rca_shed_requests_total", limit="requests") == 1
    assert value(parts.metrics, "rca_shed_requests_total", limit="bytes") == 1
    assert value(parts.metrics, "rca_held_bytes") == 0


def test_memory_of_a_process_that_is_gone_is_none() -> None:
    assert resident_bytes(os.getpid()) > 10e6
    assert resident_bytes(2**22 + 1) == 0


def test_not_ready_names_every_reason(tmp_path: Path) -> None:
    url = "postgresql://rca:hidden-word@127.0.0.1:9/rca"
    answered = TestClient(create_app(Settings(data_dir=tmp_path, processes=2, database_url=url))).get(
        "/readyz"
    )
    assert answered.status_code == 503
    told = answered.json()
    held = {check["name"]: check for check in told["checks"]}
    assert [held[name]["code"] for name in ("model", "pool", "database")] == [
        "not-ready",
        "not-ready",
        "store-unavailable",
    ]
    assert held["pool"]["detail"] == "0 of 2 processes are warm"
    assert "127.0.0.1" in held["database"]["detail"]
    assert "hidden-word" not in answered.text


def test_an_old_schema_is_a_reason_and_says_what_to_do(empty_database_url: str) -> None:
    empty = Database(empty_database_url)
    check = health.check_database(SchemaCheck(empty))
    empty.close()
    assert (check.ready, check.code) == (False, "store-unavailable")
    assert "rca db upgrade" in check.detail


def test_without_the_extra_the_service_starts_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    client = TestClient(create_app(Settings(data_dir=tmp_path, tracing="otlp")))
    assert client.get("/healthz").status_code == 200
    assert "straggler-rca[tracing]" in capsys.readouterr().err
    assert tracing.outgoing() == {}


def test_with_the_extra_spans_go_where_the_standard_variables_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "rca-staging")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tracing.start("otlp")
    try:
        provider = tracing._TracedProcess.provider
        assert provider is not None
        assert provider.resource.attributes["service.name"] == "rca-staging"
        [processor] = provider._active_span_processor._span_processors
        exporter: Any = processor
        assert exporter.span_exporter._endpoint == "http://collector:4318/v1/traces"
        with tracing.request("GET", {}) as span:
            assert span is not None
            assert not span.is_recording()
    finally:
        tracing.stop()
