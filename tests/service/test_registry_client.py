"""The registry behind a child process: results, problems, hangs and deaths."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import child_processes
import pytest

from rca_api.models.registry import RegistryAway, RegistryClient

pytestmark = [pytest.mark.system, pytest.mark.smoke]


@pytest.fixture
def client() -> Iterator[RegistryClient]:
    made = RegistryClient("somewhere", 20.0, program=child_processes.serve)
    yield made
    made.close()


def echoed(client: RegistryClient, *given: object) -> object:
    """What a child returns that gives everything back, its context (URI and log level) included."""
    context, back = client._call(child_processes.echo, *given)
    assert context == ("somewhere", "info")
    return back


def test_calls_of_many_threads_get_their_own_results(client: RegistryClient) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: echoed(client, number), range(40)))
    assert found == [(number,) for number in range(40)]


def test_the_uri_and_its_password_are_not_on_the_command_line() -> None:
    uri = "http://user:s3cretpw@registry"
    client = RegistryClient(uri, 20.0, "debug", program=child_processes.serve)
    assert client._call(child_processes.echo)[0] == (uri, "debug")
    found = client._call(child_processes.command_line)
    client.close()
    assert "child_processes.serve" in found
    assert "registry" not in found


def test_a_child_that_dies_is_replaced(client: RegistryClient) -> None:
    with pytest.raises(RegistryAway, match="died"):
        client._call(child_processes.die)
    assert echoed(client, "1") == ("1",)


def test_a_child_that_hangs_costs_the_time_limit_and_is_replaced(client: RegistryClient) -> None:
    assert echoed(client) == ()
    client._timeout = 0.2
    with pytest.raises(RegistryAway, match="did not answer within"):
        client._call(child_processes.hang)
    client._timeout = 20.0
    assert echoed(client, "1") == ("1",)


def test_a_call_that_waits_for_its_turn_fails_in_time(client: RegistryClient) -> None:
    client._timeout = 0.1
    with client._turn, pytest.raises(RegistryAway, match="busy"):
        client.versions()


def test_closing_ends_a_call_that_waits(client: RegistryClient) -> None:
    assert echoed(client) == ()
    with ThreadPoolExecutor(1) as thread:
        hangs = thread.submit(client._call, child_processes.hang)
        while not client._turn.locked():
            pass
        client.close()
        with pytest.raises(RegistryAway, match="died"):
            hangs.result(10)


def test_an_idle_child_is_ended() -> None:
    moment = 0.0
    client = RegistryClient("somewhere", 20.0, program=child_processes.serve, clock=lambda: moment)
    first = echoed(client, "1")
    assert client._child is not None
    client.rest()
    assert client._child is not None
    moment = 1000.0
    client.rest()
    assert client._child is None
    assert echoed(client, "1") == first
    client.close()


def test_a_child_that_starts_slowly_outlives_calls_that_time_out(
    capfd: pytest.CaptureFixture[str],
) -> None:
    client = RegistryClient("somewhere", 0.3, program=child_processes.serve_late)
    with pytest.raises(RegistryAway, match="still starting"):
        client.version("1")
    assert client._child is not None
    pid = client._child.pid
    answered = None
    until = time.monotonic() + 60
    while answered is None:
        assert time.monotonic() < until
        with suppress(RegistryAway):
            answered = echoed(client, "1")
    assert client._child.pid == pid
    client.close()
    # The log of the child is in the log of its parent.
    assert "the child starts" in capfd.readouterr().err


def test_a_child_that_never_starts_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rca_api.models.registry._REGISTRY_START_SECONDS", 0.1)
    client = RegistryClient("somewhere", 0.3, program=child_processes.stall)
    with pytest.raises(RegistryAway, match="still starting"):
        client.version("1")
    assert client._child is None
