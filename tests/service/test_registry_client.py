"""The registry behind a process of its own: answers, refusals, hangs and deaths."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from subprocess_rpcs import command

from rca_api.models.registry import RegistryAway, RegistryClient


@pytest.fixture
def client() -> Iterator[RegistryClient]:
    made = RegistryClient("somewhere", 20.0, command=command("echo"))
    yield made
    made.close()


def ask(client: RegistryClient, what: str) -> object:
    return client._ask(what)


def test_questions_of_many_threads_get_their_own_answers(client: RegistryClient) -> None:
    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(client.version, map(str, range(40))))
    assert told == [{"ask": "version", "name": str(number)} for number in range(40)]


def test_a_helper_that_dies_is_replaced(client: RegistryClient) -> None:
    with pytest.raises(RegistryAway, match="died"):
        ask(client, "die")
    assert client.version("1") == {"ask": "version", "name": "1"}


def test_one_that_hangs_costs_the_time_limit_and_is_replaced(client: RegistryClient) -> None:
    assert ask(client, "x") == {"ask": "x"}
    client._timeout = 0.2
    with pytest.raises(RegistryAway, match="did not answer within"):
        ask(client, "hang")
    client._timeout = 20.0
    assert client.version("1") == {"ask": "version", "name": "1"}


def test_who_waits_for_its_turn_is_told_in_time(client: RegistryClient) -> None:
    client._timeout = 0.1
    with client._turn, pytest.raises(RegistryAway, match="busy"):
        client.versions()


def test_closing_wakes_whoever_waits(client: RegistryClient) -> None:
    assert ask(client, "x") == {"ask": "x"}
    with ThreadPoolExecutor(1) as thread:
        hangs = thread.submit(ask, client, "hang")
        while not client._turn.locked():
            pass
        client.close()
        with pytest.raises(RegistryAway, match="died"):
            hangs.result(10)


def test_a_helper_that_nobody_needs_is_ended() -> None:
    moment = 0.0
    client = RegistryClient("somewhere", 20.0, command=command("echo"), clock=lambda: moment)
    first = client.version("1")
    assert client._companion is not None
    client.rest()
    assert client._companion is not None
    moment = 1000.0
    client.rest()
    assert client._companion is None
    assert client.version("1") == first
    client.close()


def test_a_helper_that_starts_slowly_is_not_ended_by_who_cannot_wait(
    capfd: pytest.CaptureFixture[str],
) -> None:
    client = RegistryClient("somewhere", 0.3, command=command("echo-late"))
    with pytest.raises(RegistryAway, match="still starting"):
        client.version("1")
    assert client._companion is not None
    pid = client._companion.pid
    answered = None
    until = time.monotonic() + 60
    while answered is None:
        assert time.monotonic() < until
        with suppress(RegistryAway):
            answered = client.version("1")
    assert client._companion.pid == pid
    client.close()
    # And what it logs is in the log of whoever asked.
    assert "the helper starts" in capfd.readouterr().err


def test_a_helper_that_never_starts_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rca_api.models.registry._START_SECONDS", 0.1)
    client = RegistryClient("somewhere", 0.3, command=command("stall"))
    with pytest.raises(RegistryAway, match="still starting"):
        client.version("1")
    assert client._companion is None
