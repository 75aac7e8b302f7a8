"""Reading from Prometheus: what the server may answer, and what a person then reads."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rca
from rca.sources.prometheus import answers
from rca.sources.prometheus.answers import TooMuchError
from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.promql import hosts, matcher
from rca.sources.prometheus.queries import Query, read_samples
from tests.for_each import for_each
from tests.telemetry.prometheus_servers import Answer, failure, free_port, stub, success

pytestmark = [pytest.mark.system, pytest.mark.smoke, pytest.mark.usefixtures("no_pauses")]

LOGIN = 200, "text/html", b"<!doctype html><title>Log in</title>"


def always(answer: Answer) -> Callable[..., Answer]:
    return lambda *_: answer


def silent(phase: str, done: int, total: int) -> None:
    pass


@for_each(
    ("answer", "said", "hint"),
    [
        ((401, "text/plain", b"no"), "refuses the credentials (401)", "RCA_PROMETHEUS_TOKEN"),
        ((403, "application/json", b"{}"), "refuses the credentials (403)", "--token-file"),
        (LOGIN, "is no Prometheus API: it answers with status 200 and text/html", "base address"),
        ((404, "text/plain", b"404 page not found"), "is no Prometheus API", "path prefix"),
        ((200, "application/json", b'{"hello": 1}'), "other JSON", "base address"),
        (failure(400, "bad_data", "parse error"), "refuses the query (400): parse error", None),
        (
            success(["a"], warnings=["store 10.0.0.7 is unavailable"]),
            "partial data: store 10.0.0.7 is unavailable",
            "--allow-partial",
        ),
    ],
)
def test_what_cannot_be_used_says_why_and_what_to_do(answer: Answer, said: str, hint: str | None) -> None:
    with stub(always(answer)) as url, pytest.raises(rca.SourceError) as refused:
        rca.read_prometheus(url, "llama")
    assert said in str(refused.value)
    assert hint is None or hint in str(refused.value.hint)


def test_a_redirect_is_not_followed() -> None:
    def handle(path: str, parameters: Any, headers: Any) -> Answer:
        asked.append(path)
        return 302, "text/plain", b""

    asked: list[str] = []
    with stub(handle) as url, pytest.raises(rca.SourceError, match="redirects to"):
        rca.read_prometheus(url, "llama", token="secret")  # noqa: S106
    assert len(asked) == 1


def test_a_name_that_cannot_be_one_is_an_error() -> None:
    with pytest.raises(rca.SourceError, match="cannot be reached"):
        Prometheus(f"http://{'a' * 70}.example").query("up", 0.0)


def test_the_command_line_loads_no_http_client() -> None:
    code = "import sys, rca.cli, rca.client, rca.sources.prometheus.window; sys.exit('httpx2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(rca.SourceError, match="cannot be reached") as refused:
        rca.read_prometheus(f"http://127.0.0.1:{free_port()}", "llama")
    assert "port" in str(refused.value.hint)


def test_a_server_that_hangs_is_named() -> None:
    ended = threading.Event()

    def handle(*_: Any) -> Answer:
        ended.wait(10)
        return success([])

    with stub(handle) as url:
        try:
            with pytest.raises(rca.SourceError, match=r"does not answer within 0\.05 s"):
                rca.read_prometheus(url, "llama", timeout=0.05)
        finally:
            ended.set()


def test_transient_failures_are_repeated_with_growing_pauses(no_pauses: list[float]) -> None:
    answers = iter([failure(500, "internal", "oops"), (503, "text/plain", b"busy"), success(["up"])])
    with stub(lambda *_: next(answers)) as url:
        assert Prometheus(url).label_values("__name__", [], 0.0, 1.0) == ["up"]
    assert no_pauses == [0.5, 1.0]


def test_a_failure_that_stays_is_an_error() -> None:
    broken = stub(always(failure(500, "internal", "disk full")))
    with broken as url, pytest.raises(rca.SourceError, match="failed 4 times, at last with 500: disk full"):
        Prometheus(url).query("up", 0.0)


def test_a_proxy_whose_server_is_away_is_no_other_api() -> None:
    broken = stub(always((502, "text/html", b"<h1>Bad Gateway</h1>")))
    with broken as url, pytest.raises(rca.SourceError, match="at last with 502: <h1>Bad Gateway"):
        Prometheus(url).query("up", 0.0)


def test_too_many_requests_are_repeated_later(no_pauses: list[float]) -> None:
    answers = iter([(429, "text/plain", b"rate limit exceeded"), success(["up"])])
    with stub(lambda *_: next(answers)) as url:
        assert Prometheus(url).label_values("__name__", [], 0.0, 1.0) == ["up"]
    assert no_pauses == [0.5]


def test_a_list_that_takes_too_long_is_an_error_with_a_hint() -> None:
    slow = stub(always(failure(503, "timeout", "query timed out")))
    with slow as url, pytest.raises(rca.SourceError, match="cannot answer so much at once") as refused:
        rca.read_prometheus(url, "llama")
    assert "--since" in str(refused.value.hint)


@pytest.mark.parametrize(
    "answer",
    [
        failure(
            422, "execution", "query processing would load too many samples into memory in query execution"
        ),
        failure(503, "timeout", "query timed out in expression evaluation"),
        failure(422, "execution", "the query exceeded the maximum number of chunks (limit: 2000000 chunks)"),
    ],
)
def test_what_selects_too_much_is_not_repeated(answer: Answer, no_pauses: list[float]) -> None:
    with stub(always(answer)) as url, pytest.raises(TooMuchError):
        Prometheus(url).query("up", 0.0)
    assert no_pauses == []


def test_an_answer_beyond_the_limit_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 1000)
    with stub(always(success(["x" * 2000]))) as url, pytest.raises(TooMuchError, match="1,000 bytes"):
        Prometheus(url).query("up", 0.0)


def range_answer(parameters: dict[str, list[str]], most: float = 1e9) -> Answer:
    """One sample a second, in the closed range that the query asks for."""
    end = float(parameters["time"][0])
    span = int(re.findall(r"\[(\d+)ms\]", parameters["query"][0])[0]) / 1000
    if span > most:
        return failure(422, "execution", "query processing would load too many samples")
    seconds = range(int(np.ceil(end - span)), int(end) + 1)
    result = [{"metric": {"__name__": "up"}, "values": [[at, str(at % 7)] for at in seconds]}]
    return success({"resultType": "matrix", "result": result})


def test_a_query_that_selects_too_much_is_split_by_time() -> None:
    with stub(lambda path, parameters, headers: range_answer(parameters, most=120.0)) as url:
        found = read_samples(Prometheus(url), [Query("up", 1000.0, 1600.0)], silent)
    assert len(found) > 4
    # Every second once, in order: pieces do not overlap.
    assert np.concatenate([each.time for each in found]).tolist() == list(range(1000, 1600))


def test_a_query_that_cannot_be_split_further_is_an_error() -> None:
    strict = stub(lambda path, parameters, headers: range_answer(parameters, most=1.0))
    with strict as url, pytest.raises(rca.TooLarge, match=r"even \d+ s of up are too much") as refused:
        read_samples(Prometheus(url), [Query("up", 1000.0, 1600.0)], silent)
    assert "max-samples" in str(refused.value.hint)


def test_more_samples_than_the_limit_are_refused() -> None:
    server = stub(lambda path, parameters, headers: range_answer(parameters))
    with server as url, pytest.raises(rca.TooLarge, match="more than 500 samples"):
        read_samples(Prometheus(url), [Query("up", 1000.0, 1600.0)], silent, max_samples=500)


def test_special_values_are_read() -> None:
    values = [[1.0, "NaN"], [2.0, "+Inf"], [3.0, "1e3"]]
    answer = success({"resultType": "matrix", "result": [{"metric": {"__name__": "up"}, "values": values}]})
    with stub(always(answer)) as url:
        (found,) = read_samples(Prometheus(url), [Query("up", 0.0, 10.0)], silent)
    np.testing.assert_array_equal(found.value, [np.nan, np.nan, 1000.0])
    assert found.infinite == 1


def test_a_proxy_without_post_gets_get() -> None:
    def handle(path: str, parameters: dict[str, list[str]], headers: dict[str, str]) -> Answer:
        if "Content-Length" in headers:
            return 405, "text/plain", b"POST is not allowed"
        return success({"resultType": "vector", "result": []})

    with stub(handle) as url:
        assert Prometheus(url).query("up", 0.0) == []


@for_each(
    "url",
    ["ftp://prometheus", "http://", "http://host:port", "prometheus:9090/graph", "https://p.example/mimir/"],
)
def test_addresses_are_checked_and_pages_of_browsers_understood(url: str) -> None:
    good = {
        "prometheus:9090/graph": "http://prometheus:9090",
        "https://p.example/mimir/": "https://p.example/mimir",
    }
    if url in good:
        assert Prometheus(url).address == good[url]
    else:
        with pytest.raises(rca.InvalidInput, match="no http or https URL"):
            Prometheus(url)


def test_names_in_selectors_are_quoted() -> None:
    assert matcher("job", ['a"b\\c']) == 'job="a\\"b\\\\c"'
    assert matcher("pod", ["a.b", "c"]) == 'pod=~"a\\\\.b|c"'
    pattern = (
        hosts("instance", ["node-1", "10.0.0.2"])
        .removeprefix('instance=~"')
        .removesuffix('"')
        .replace("\\\\", "\\")
    )
    matched = [
        name
        for name in (
            "node-1",
            "node-1:9100",
            "node-1.hpc.example:9100",
            "10.0.0.2:9100",
            "node-10:9100",
            "10x0.0.2",
        )
        if re.fullmatch(pattern, name)
    ]
    assert matched == ["node-1", "node-1:9100", "node-1.hpc.example:9100", "10.0.0.2:9100"]


def test_queries_run_several_at_once() -> None:
    both = threading.Barrier(2, timeout=10)

    def handle(path: str, parameters: dict[str, list[str]], headers: Any) -> Answer:
        both.wait()
        return range_answer(parameters)

    with stub(handle) as url:
        found = read_samples(Prometheus(url), [Query("up", 0.0, 60.0), Query("up", 0.0, 60.0)], silent)
    assert len(found) == 2


def test_jobs_of_one_name_in_two_clusters_are_listed() -> None:
    def handle(path: str, parameters: dict[str, list[str]], headers: Any) -> Answer:
        if path.endswith("/series"):
            labels = {"__name__": "DCGM_FI_DEV_SM_CLOCK", "Hostname": "a", "gpu": "0", "hpc_job": "7"}
            found = any('hpc_job="7"' in each for each in parameters["match[]"])
            return success([{**labels, "cluster": cluster} for cluster in ("eu", "us")] if found else [])
        return success(["DCGM_FI_DEV_SM_CLOCK"])

    with (
        stub(handle) as url,
        pytest.raises(rca.InvalidInput, match="7 runs in 2 clusters: eu, us") as refused,
    ):
        rca.read_prometheus(url, "7")
    assert """--match 'cluster="eu"'""" in str(refused.value.hint)


def test_pods_that_no_device_names_are_an_error_with_a_hint() -> None:
    def handle(path: str, parameters: dict[str, list[str]], headers: Any) -> Answer:
        asked = "".join(parameters.get("match[]", []))
        if path.endswith("/series") and "kube_pod_labels" in asked:
            prefix = "label_training_kubeflow_org_"
            labels = {"job_name": "llama", "replica_type": "worker", "replica_index": "0"}
            pod = {"namespace": "ml", "pod": "llama-worker-0"}
            return success([pod | {prefix + name: value for name, value in labels.items()}])
        if path.endswith("/values") and not asked:
            return success(["DCGM_FI_DEV_SM_CLOCK"])
        return success([])

    with (
        stub(handle) as url,
        pytest.raises(rca.InvalidInput, match="llama has 1 pods, but no metric") as refused,
    ):
        rca.read_prometheus(url, "llama")
    assert "DCGM_EXPORTER_KUBERNETES" in str(refused.value.hint)


@for_each("timeout", [0.0, -1.0, 86_401.0, float("inf"), float("nan")])
def test_a_timeout_that_no_socket_takes_is_refused(timeout: float) -> None:
    with pytest.raises(rca.InvalidInput, match=r"a timeout of .* cannot be used"):
        rca.read_prometheus("http://127.0.0.1:1", "llama", timeout=timeout)
