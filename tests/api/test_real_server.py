"""A real server process on a real socket: the demo, the client, and what only a socket shows."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from bad_windows import REFUSED

import rca
from rca.client import AsyncClient, Client
from rca.errors import InvalidWindow
from rca_api.shell import demo
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.system]

WINDOW = Path(demo.DEFAULT_WINDOW)


def test_the_client_gets_the_diagnosis_of_the_library(url: str) -> None:
    by_service, here = Client(url).diagnose(WINDOW), rca.diagnose(rca.read_window(WINDOW))
    assert by_service.failure_mode == here.failure_mode
    assert [group.ranks for group in by_service.stragglers] == [group.ranks for group in here.stragglers]
    assert by_service.slowdown.seconds_per_step == pytest.approx(here.slowdown.seconds_per_step)


def test_the_client_for_asyncio_gets_the_same_diagnoses(url: str) -> None:
    client = AsyncClient(url)
    windows = [WINDOW, WINDOW.with_name("healthy")]

    async def answers() -> tuple[list[rca.Diagnosis], bytes, dict[str, object]]:
        found = await asyncio.gather(*map(client.diagnose, windows))
        text = await client.get(f"/v1/diagnoses/{found[0].diagnosis_id}", "text/markdown")
        return found, text, await client.ready()

    found, text, ready = asyncio.run(answers())
    here = [rca.diagnose(rca.read_window(path)) for path in windows]
    assert [each.verdict for each in found] == [each.verdict for each in here]
    assert [each.causes for each in found] == [each.causes for each in here]
    assert text.decode().startswith("# ")
    assert ready["status"] == "ready"


def test_an_answer_lost_on_the_way_to_the_client_for_asyncio_is_not_a_second_diagnosis(url: str) -> None:
    before = n_diagnoses(url)
    with answer_lost_once(url) as lossy:
        found = asyncio.run(AsyncClient(lossy).diagnose(WINDOW))
    assert n_diagnoses(url) == before + 1
    assert json.loads(urlopen(f"{url}/v1/diagnoses/{found.diagnosis_id}").read())


def test_the_client_says_what_is_ready(url: str) -> None:
    assert Client(url).ready()["status"] == "ready"


@contextmanager
def answer_lost_once(url: str) -> Iterator[str]:
    """An address that passes bytes on to the service, and drops the first answer when it begins."""
    where = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def serve() -> None:
            for answer_arrives in (False, True):
                near, _ = listener.accept()
                with near, socket.create_connection((where.hostname, where.port), timeout=20) as far:
                    there = threading.Thread(target=pass_on, args=(near, far))
                    there.start()
                    if answer_arrives:
                        pass_on(far, near)
                    else:
                        far.recv(1)
                    near.shutdown(socket.SHUT_RDWR)
                    there.join()

        relay = threading.Thread(target=serve)
        relay.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        relay.join()


def pass_on(source: socket.socket, sink: socket.socket) -> None:
    while piece := source.recv(65536):
        sink.sendall(piece)


def n_diagnoses(url: str) -> int:
    return len(json.loads(urlopen(f"{url}/v1/diagnoses?limit=200").read())["items"])


def test_an_answer_that_is_lost_on_the_way_is_not_a_second_diagnosis(url: str) -> None:
    before = n_diagnoses(url)
    with answer_lost_once(url) as lossy:
        found = Client(lossy).diagnose(WINDOW)
    assert n_diagnoses(url) == before + 1
    kept = json.loads(urlopen(f"{url}/v1/diagnoses/{found.diagnosis_id}").read())
    assert kept["diagnosis_id"] == found.diagnosis_id


def exchange(url: str, head: str) -> tuple[int, bytes]:
    """Send a request's head and nothing more; status and body of the answer."""
    where = urlsplit(url)
    assert where.hostname
    assert where.port
    with socket.create_connection((where.hostname, where.port), timeout=20) as link:
        link.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        # The service may keep the connection open for a body that it does not read.
        with HTTPResponse(link) as answer:
            answer.begin()
            return answer.status, answer.read()


def test_a_declared_gigabyte_is_refused_before_it_is_sent(url: str) -> None:
    status, body = exchange(
        url,
        "POST /v1/diagnoses HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: 1000000000",
    )
    assert status == 413
    assert b'"code":"too-large"' in body


def text_of(url: str) -> str:
    return urlopen(f"{url}/metrics").read().decode()


def test_a_caller_that_leaves_is_not_a_failure(url: str) -> None:
    def said(status: str) -> float:
        found = re.findall(
            rf'^rca_http_requests_total{{.*status="{status}"}} (.+)$', text_of(url), re.MULTILINE
        )
        return sum(map(float, found))

    before = said("499")
    where = urlsplit(url)
    fields = ("Host: x", "Content-Type: application/json", "Content-Length: 500", "", "{")
    head = "\r\n".join(("POST /v1/diagnoses HTTP/1.1", *fields))
    with socket.create_connection((where.hostname, where.port), timeout=20) as link:
        link.sendall(head.encode())
    until(lambda: said("499") == before + 1)
    assert not said("500")


def test_a_malformed_request_line_is_refused(url: str) -> None:
    assert exchange(url, "NONSENSE")[0] == 400


def test_a_long_url_is_refused(url: str) -> None:
    assert exchange(url, f"GET /healthz?{'a' * 10_000} HTTP/1.1\nHost: x")[0] == 414


def test_the_client_raises_the_librarys_own_error(url: str, tmp_path: Path) -> None:
    path = tmp_path / "window.json"
    path.write_bytes(REFUSED["negative duration"].body)
    with pytest.raises(InvalidWindow) as here:
        Client(url).diagnose(path)
    assert (here.value.table, here.value.column) == ("steps", "forward_seconds")


def test_the_demo_prints_the_diagnosis(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--window", str(WINDOW)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("FAIL-SLOW: node node-1 ")
    assert "cpu_contention" in printed


def test_the_demo_fails_with_a_message(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "running_service", lambda: nullcontext(url))
    assert demo.main(["--window", str(tmp_path / "nothing")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error (source-error): ")
