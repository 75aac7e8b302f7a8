"""`POST /v1/hooks/alertmanager`: alerts of a real Alertmanager, windows of a real Prometheus."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import robusta_api
from alertmanager_server import MISSING, alertmanager, raise_alert
from watched import asked

from rca.deadline import Deadline
from rca.errors import InvalidInput
from rca_api.hooks import alertmanager as alertmanager_hook
from rca_api.hooks.alertmanager import jobs_of
from rca_api.hooks.schemas import AlertGroup
from rca_api.hooks.sources import Sources
from rca_api.shell.demo import running_service
from rca_api.watch import prometheus_access
from tests.telemetry import prometheus_servers
from tests.telemetry.prometheus_servers import (
    dcgm_samples,
    dripping,
    node_samples,
    prometheus,
    stub,
    talking,
)
from tests.waiting import until

pytestmark = pytest.mark.system

NOW = 1_795_000_000.0
PROMETHEUS = {"url": "http://prometheus:9090"}


def group(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {"version": "4", "status": "firing", "alerts": list(alerts)}


def alert(status: str = "firing", begins: str = "2026-11-18T11:00:00Z", **labels: str) -> dict[str, Any]:
    return {"status": status, "labels": labels, "startsAt": begins, "fingerprint": "-".join(labels.values())}


def found(sources: dict[str, Any], *alerts: dict[str, Any]) -> Any:
    return jobs_of(AlertGroup.model_validate(group(*alerts)), Sources.model_validate(sources), NOW)


def test_alerts_about_one_job_share_a_window_that_begins_before_the_first() -> None:
    first, second = "2026-11-18T10:50:00Z", "2026-11-18T11:00:00Z"
    (job,), skipped = found(
        {"prometheus": [PROMETHEUS]}, alert(job_id="a", begins=second), alert(job_id="a", x="y", begins=first)
    )
    assert skipped == []
    assert job.fingerprints == ["a", "a-y"]
    assert job.wanted.end == NOW
    began = AlertGroup.model_validate(group(alert(begins=first))).alerts[0].startsAt.timestamp()
    assert job.wanted.start == max(began - 900, NOW - 3600)


def test_a_source_takes_alerts_with_its_labels_and_reads_its_own_label_of_the_job() -> None:
    sources = {
        "prometheus": [
            {**PROMETHEUS, "match": {"cluster": "a"}, "job_labels": ["training"]},
            {**PROMETHEUS, "match": {"cluster": "b"}, "namespace_label": "ns"},
        ]
    }
    jobs, (skipped,) = found(
        sources,
        alert(cluster="a", training="one", job_id="two"),
        alert(cluster="b", training="one", job_id="two", ns="team"),
        alert(cluster="c", job_id="three"),
    )
    assert [(job.wanted.job, job.wanted.namespace) for job in jobs] == [("one", None), ("two", "team")]
    assert skipped.detail == "no source takes alerts with these labels"


def test_resolved_alerts_and_those_without_a_job_are_skipped() -> None:
    jobs, (over, nameless) = found(
        {"prometheus": [PROMETHEUS]}, alert("resolved", job_id="a"), alert(job="dcgm-exporter")
    )
    assert jobs == []
    assert over.detail == "the alert is resolved"
    assert (nameless.detail or "").startswith("the alert names no job: it has none of the labels hpc_job, ")


def test_alerts_of_gpu_exporters_name_the_job_by_their_pod_and_else_the_machine() -> None:
    gpu = {"gpu": "2", "Hostname": "gpu-b", "job": "dcgm"}
    in_pod = alert(**gpu, pod="llama-70b-worker-1", namespace="ml-train")
    jobs, skipped = found({"prometheus": [PROMETHEUS]}, in_pod, alert(**gpu))
    assert skipped == []
    assert [(job.wanted.job, job.wanted.namespace, job.wanted.node) for job in jobs] == [
        ("llama-70b", "ml-train", None),
        (None, None, "gpu-b"),
    ]


def test_of_many_jobs_the_first_are_diagnosed_and_our_own_alerts_are_skipped() -> None:
    many = [alert(job_id=f"job-{number}") for number in range(18)]
    own = alert(alertname="TrainingJobIncident", job_id="x")
    jobs, skipped = found({"prometheus": [PROMETHEUS]}, *many, own)
    assert [job.wanted.job for job in jobs] == [f"job-{number}" for number in range(16)]
    assert sorted(each.job_id or "" for each in skipped) == ["", "job-16", "job-17"]


def test_the_file_of_sources_names_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "sources.yaml"
    file.write_text("prometheus:\n  - {url: 'http://a', sicne: 5m}\n")
    with pytest.raises(InvalidInput, match="sicne"):
        Sources.read(file)
    file.write_text("prometheus:\n  - {url: 'http://a', since: 5m, token_file: token}\n")
    (source,) = Sources.read(file).prometheus
    assert (source.since, source.token_file) == (300.0, tmp_path / "token")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with a Prometheus of the last hour, in which GPU 37 is slow, and one that is away."""
    folder = tmp_path_factory.mktemp("alerts")
    if prometheus_servers.MISSING:
        pytest.skip(f"not installed: {prometheus_servers.MISSING}")
    now = time.time()
    times = [now - 3600 + 15 * number for number in range(240)]
    lines = chain(
        dcgm_samples(8, times, slow=37, label=lambda node, gpu: ',job="dcgm",hpc_job="4711"'),
        node_samples(8, times),
    )
    with (
        prometheus(folder / "prometheus", lines) as url,
        stub(lambda *_: (503, "text/plain", b"away")) as away,
        talking(dripping(b" " * 500, b"HTTP/1.1 200 OK\r\n\r\n")) as slow,
    ):
        sources = {
            "prometheus": [
                {"url": url, "match": {"site": "a"}},
                {"url": away, "match": {"site": "b"}},
                {"url": slow, "match": {"site": "c"}, "timeout": 1},
            ]
        }
        (folder / "sources.yaml").write_text(json.dumps(sources))
        settings = {
            "RCA_DATA_DIR": str(folder / "data"),
            "RCA_PROCESSES": "1",
            "RCA_SOURCES": str(folder / "sources.yaml"),
        }
        with running_service(settings=settings) as address:
            yield address


def posted(url: str, body: dict[str, Any]) -> Any:
    request = Request(
        f"{url}/v1/hooks/alertmanager", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)["items"]


@pytest.mark.slow
def test_the_answer_is_the_diagnosis_of_the_job(service: str) -> None:
    told, skipped = posted(
        service, group(alert(site="a", job_id="4711", begins="2020-01-01T00:00:00Z"), alert(x="y"))
    )
    assert (told["state"], skipped["state"]) == ("diagnosed", "skipped")
    # Exporters alone do not show whether the job is slow, only which device stands out.
    assert told["verdict"] == "undecided"
    assert "rank 37 on node-4" in told["headline"]
    kept = asked(f"{service}/v1/diagnoses/{told['diagnosis_id']}")
    assert kept["causes"][0]["ranks"] == [37]


@pytest.mark.slow
def test_an_alert_about_a_machine_is_answered_for_the_job_that_runs_on_it(service: str) -> None:
    began = "2020-01-01T00:00:00Z"
    alerts = alert(site="a", Hostname="node-4", begins=began), alert(site="a", node="elsewhere", begins=began)
    by_state = {each["state"]: each for each in posted(service, group(*alerts))}
    assert by_state["diagnosed"]["job_id"] == "4711"
    assert by_state["skipped"]["detail"] == "0 jobs have devices on elsewhere"


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_real_alertmanager_gets_a_diagnosis_of_the_job(service: str, tmp_path: Path) -> None:
    before = len(asked(f"{service}/v1/diagnoses")["items"])
    config = {
        "route": {"receiver": "rca", "group_by": ["job_id"], "group_wait": "0s"},
        "receivers": [
            {"name": "rca", "webhook_configs": [{"url": f"{service}/v1/hooks/alertmanager"}]},
        ],
    }
    with alertmanager(tmp_path, config) as url:
        raise_alert(url, alertname="SlowTraining", site="a", job_id="4711")
        until(lambda: len(asked(f"{service}/v1/diagnoses")["items"]) > before)


@pytest.mark.slow
def test_the_example_for_robusta_adds_the_diagnosis_of_the_job(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = robusta_api.act(robusta_api.playbook(monkeypatch), service, site="a", job_id="4711")
    assert "rank 37 on " in text.splitlines()[0]
    assert "\n- *Check:* " in text


@pytest.mark.slow
def test_an_alert_about_a_job_that_is_not_there_is_skipped_and_not_repeated(service: str) -> None:
    [one] = posted(service, group(alert(site="a", job_id="nosuch")))
    assert (one["state"], "no device reports for the job nosuch" in one["detail"]) == ("skipped", True)


@pytest.mark.slow
def test_a_source_that_is_away_is_an_error_that_alertmanager_repeats(service: str) -> None:
    with pytest.raises(HTTPError) as error:
        posted(service, group(alert(site="b", job_id="4711")))
    with error.value as answer:
        assert answer.status == 502
        assert json.load(answer)["type"].endswith("source-error")


@pytest.mark.slow
def test_a_source_that_answers_byte_by_byte_has_its_time_limit(service: str) -> None:
    began = time.monotonic()
    with pytest.raises(HTTPError) as error:
        posted(service, group(alert(site="c", job_id="4711")))
    with error.value as answer:
        assert answer.status == 502
        assert "does not answer within 1 s" in json.load(answer)["detail"]
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(("timeout", "left", "seconds"), [(5, 100, 5), (300, 10, 8)])
def test_a_source_has_its_own_time_limit_and_part_of_that_of_the_answer(
    monkeypatch: pytest.MonkeyPatch, timeout: float, left: float, seconds: float
) -> None:
    given: list[float] = []
    monkeypatch.setattr(prometheus_access, "read_prometheus", lambda *_, timeout, **__: given.append(timeout))
    monkeypatch.setattr(alertmanager_hook, "refuse_large", lambda *_: None)
    monkeypatch.setattr(alertmanager_hook, "store", lambda *_: None)
    (job,), _ = found({"prometheus": [{**PROMETHEUS, "timeout": timeout}]}, alert(job_id="a"))
    context: Any = SimpleNamespace(stage=lambda _: nullcontext(), max_memory_bytes=None)
    alertmanager_hook.read_and_store(context, job.wanted, Deadline.after(left, clock=lambda: 0.0))
    assert given == [seconds]


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", [{}, {"version": "3", "alerts": []}, group({"status": "firing"}), group(alert("odd", job_id="a"))]
)
def test_another_message_is_refused(service: str, body: dict[str, Any]) -> None:
    with pytest.raises(HTTPError) as error:
        posted(service, body)
    with error.value as answer:
        assert answer.status == 422
