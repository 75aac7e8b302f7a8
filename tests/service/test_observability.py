"""One run of a service with everything switched on: what its log, its metrics and its spans say of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.observability import tracing
from rca_api.shell.observability.metrics import STAGES
from rca_api.shell.settings.settings import Settings
from tests.waiting import until

pytestmark = pytest.mark.system

JSON = {"Content-Type": "application/json"}
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
IN_POOL = {"decompress", "decode", "diagnose", "keep", "render"}


@dataclass
class Observed:
    """All that one run left behind."""

    lines: list[dict[str, Any]]
    spans: list[ReadableSpan]
    metrics: dict[str, float]
    answers: dict[str, Any]
    outgoing: dict[str, str]
    ready: dict[str, Any]

    def said(self, event: str, **members: object) -> list[dict[str, Any]]:
        wanted = {"event": event, **members}
        return [line for line in self.lines if wanted.items() <= line.items()]

    def span(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.spans if span.name == name]
        return found

    def below(self, span: ReadableSpan) -> list[ReadableSpan]:
        assert span.context is not None
        return [each for each in self.spans if each.parent and each.parent.span_id == span.context.span_id]


@pytest.fixture(scope="module")
def redirected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Standard error in a file, for this process and for those that it starts."""
    path = tmp_path_factory.mktemp("log") / "stderr"
    before, kept = os.dup(2), sys.stderr
    with path.open("w", buffering=1) as file:
        os.dup2(file.fileno(), 2)
        sys.stderr = file
        try:
            yield path
        finally:
            sys.stderr = kept
            os.dup2(before, 2)
            os.close(before)


@pytest.fixture(scope="module")
def observed(redirected: Path, tmp_path_factory: pytest.TempPathFactory, make_window: Any) -> Observed:
    spans = InMemorySpanExporter()
    tracing.install(SimpleSpanProcessor(spans))
    data = tmp_path_factory.mktemp("data")
    body = make_window(8, 40, late={5: 0.05}, phase="data_loading_seconds").to_json()
    settings = Settings(processes=1, data_dir=data, log_level="debug")
    traced = {"X-Request-ID": "look-for-me", "traceparent": f"00-{TRACE}-{CALLER}-01"}
    with TestClient(create_app(settings)) as client:
        answer = client.post("/v1/diagnoses", content=body, headers={**JSON, **traced})
        client.post("/v1/diagnoses", content=b"[]", headers=JSON)
        later = {"Prefer": "respond-async", "X-Request-ID": "look-for-me-later"}
        queued = client.post("/v1/diagnoses", content=body, headers={**JSON, **later})
        until(lambda: client.get(queued.headers["location"]).status_code != 202)
        ready = client.get("/readyz").json()
        exposed = client.get("/metrics").text
    lines = [json.loads(line) for line in redirected.read_text().splitlines()]
    series = [line.rpartition(" ") for line in exposed.splitlines() if not line.startswith("#")]
    return Observed(
        lines=lines,
        spans=list(spans.get_finished_spans()),
        metrics={name: float(value) for name, _, value in series},
        answers={"now": answer.json(), "queued": queued.headers["location"].rpartition("/")[2]},
        outgoing=dict(answer.headers),
        ready=ready,
    )


def test_each_diagnosis_has_one_line_with_all_its_ids_and_times(observed: Observed) -> None:
    now, later = observed.said("diagnosis")
    document = observed.answers["now"]
    assert (now["diagnosis_id"], now["request_id"]) == (document["diagnosis_id"], "look-for-me")
    assert (now["job_id"], now["failure_mode"]) == ("test", document["failure_mode"])
    assert now["cause"] == document["causes"][0]["cause"]
    assert now["abstained"] is document["abstained"]
    assert set(now["milliseconds"]) == {"receive", "queue", "commit"} | IN_POOL
    assert all(value >= 0 for value in now["milliseconds"].values())
    assert later["diagnosis_id"] == observed.answers["queued"]
    assert later["request_id"] == "look-for-me-later"
    assert {"queue", "diagnose", "commit"} <= set(later["milliseconds"])


def test_a_queued_diagnosis_is_found_from_its_request_and_back(observed: Observed) -> None:
    ids = {"request_id": "look-for-me-later", "diagnosis_id": observed.answers["queued"]}
    [accepted] = observed.said("request", **ids)
    assert accepted["status"] == 202
    assert len(observed.said("diagnosis", **ids)) == 1
    assert len(observed.said("task", task="diagnose_stored", **ids)) == 1
    [at_once] = observed.said("request", request_id="look-for-me")
    assert at_once["diagnosis_id"] == observed.answers["now"]["diagnosis_id"]


def test_how_long_a_queued_diagnosis_took_is_measured(observed: Observed) -> None:
    assert observed.metrics["rca_queued_diagnosis_seconds_count"] == 1
    assert observed.metrics["rca_queued_diagnosis_seconds_sum"] > 0


def test_times_of_requests_are_kept_apart_by_what_they_were(observed: Observed) -> None:
    def count(method: str, route: str, status: int) -> float:
        labels = f'method="{method}",route="{route}",status="{status}"'
        return observed.metrics[f"rca_http_request_seconds_count{{{labels}}}"]

    assert [count("POST", "/v1/diagnoses", status) for status in (200, 202, 422)] == [1, 1, 1]
    assert count("GET", "/v1/diagnoses/{diagnosis_id}", 200) == 1


def test_processes_of_the_pool_log_the_request_they_work_for(observed: Observed) -> None:
    [line] = observed.said("task", task="diagnose", request_id="look-for-me")
    assert line["process"] not in (None, os.getpid())
    assert line["trace_id"] == TRACE
    [started] = observed.said("process ready")
    assert (started["process"], started["failure"]) == (line["process"], None)
    [stored] = observed.said("task", task="diagnose_stored")
    assert stored["diagnosis_id"] == observed.answers["queued"]


def test_lines_carry_the_trace_of_their_request(observed: Observed) -> None:
    mine = [line for line in observed.lines if line.get("request_id") == "look-for-me"]
    assert {line["event"] for line in mine} == {"request", "diagnosis", "task"}
    assert {line["trace_id"] for line in mine} == {TRACE}


def test_a_request_is_a_span_below_the_callers(observed: Observed) -> None:
    [span] = [each for each in observed.spans if each.parent and f"{each.parent.span_id:016x}" == CALLER]
    assert span.name == "POST /v1/diagnoses"
    assert f"{span.context.trace_id:032x}" == TRACE  # type: ignore[union-attr]
    assert dict(span.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/v1/diagnoses",
        "http.response.status_code": 200,
    }
    assert observed.outgoing["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"  # type: ignore[union-attr]


def test_stages_are_spans_below_it_those_of_the_pool_too(observed: Observed) -> None:
    [span] = [each for each in observed.spans if each.parent and f"{each.parent.span_id:016x}" == CALLER]
    stages = {each.name: each for each in observed.below(span)}
    assert set(stages) == {"receive", "queue", "commit"} | IN_POOL
    for stage in stages.values():
        # Clocks of two processes on one machine: they agree, to a millisecond or so.
        assert span.start_time - 5e6 <= stage.start_time <= stage.end_time <= span.end_time + 5e6
    assert stages["decode"].end_time <= stages["diagnose"].start_time + 1e6


def test_a_queued_diagnosis_is_a_trace_of_its_own(observed: Observed) -> None:
    span = observed.span("queued diagnosis")
    assert span.parent is None
    assert span.attributes == {"diagnosis_id": observed.answers["queued"]}
    assert {"queue", "diagnose", "commit"} <= {each.name for each in observed.below(span)}


def test_a_refused_request_is_counted_by_route_and_status(observed: Observed) -> None:
    statuses = [
        span.attributes["http.response.status_code"]
        for span in observed.spans
        if span.name == "POST /v1/diagnoses" and span.attributes
    ]
    assert sorted(statuses) == [200, 202, 422]


def test_every_stage_was_timed(observed: Observed) -> None:
    for stage in STAGES:
        assert observed.metrics[f'rca_diagnosis_stage_seconds_count{{stage="{stage}"}}'] >= 2, stage


def test_gauges_show_the_load_and_the_memory_of_the_pool(observed: Observed) -> None:
    named = ("size", "warm", "busy", "waiting")
    assert [observed.metrics[f"rca_pool_{name}"] for name in named] == [1, 1, 0, 0]
    assert observed.metrics["rca_pool_memory_bytes"] > 30e6
    assert observed.metrics["process_resident_memory_bytes"] > 30e6
    assert observed.metrics['rca_database_connections{state="in_use"}'] >= 0


def test_what_is_missing_and_unusual_is_counted_by_name(observed: Observed) -> None:
    document = observed.answers["now"]
    assert document["missing_signals"]
    for signal in document["missing_signals"]:
        assert observed.metrics[f'rca_missing_signals_total{{signal="{signal}"}}'] == 2
    outside = document["quality"]["features_outside"]
    counted = {name: value for name, value in observed.metrics.items() if "features_outside_total{" in name}
    assert sum(value > 0 for value in counted.values()) == len(outside)
    for feature in outside:
        assert counted[f'rca_features_outside_total{{feature="{feature}"}}'] == 2


def test_the_champion_is_named_once(observed: Observed) -> None:
    named = [name for name in observed.metrics if name.startswith("rca_bundle_info{")]
    assert len(named) == 1
    assert observed.answers["now"]["model"]["sha256"] in named[0]
    assert 'role="champion"' in named[0]


def test_readiness_lists_every_check(observed: Observed) -> None:
    assert [(check["name"], check["ready"]) for check in observed.ready["checks"]] == [
        ("model", True),
        ("pool", True),
        ("database", True),
    ]
    assert observed.ready["checks"][1]["detail"] == "1 of 1 processes are warm"


def test_the_run_ended_with_its_tracer(observed: Observed) -> None:
    assert observed.spans
    assert tracing.ids() == {}
    assert tracing.outgoing() == {}
