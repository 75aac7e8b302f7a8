"""Shared counts of requests on a real Redis, by each form of its URL."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from redis_server import RedisServer

from rca.errors import InvalidInput, MissingExtra
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security.rates import Rates
from rca_api.shell.store.redis_pool import is_redis, redis_pool
from tests.for_each import for_each

pytestmark = pytest.mark.system

FORMS = ("password", "user", "tls", "socket", "socket of limits")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    pytest.importorskip("redis", reason="the driver of Redis is not installed: make setup")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    # Not below pytest's folder: a socket's path may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="rca-redis-", dir="/tmp") as name:
        made = RedisServer(program, Path(name))
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def rates(server: RedisServer) -> Iterator[Callable[..., Rates]]:
    """Makes the counts of a replica."""
    made: list[Rates] = []

    def make(url: str, rate: str = "3/minute", **options: object) -> Rates:
        made.append(Rates(rate, url, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@for_each("form", FORMS)
def test_replicas_count_requests_together(
    server: RedisServer, rates: Callable[..., Rates], form: str
) -> None:
    one, other = rates(server.urls[form]), rates(server.urls["password"])
    one.hit(form, 2)
    other.hit(form)
    for replica in (one, other):
        with pytest.raises(ProblemError, match="more than 3 per 1 minute") as caught:
            replica.hit(form)
        assert 1 <= int(caught.value.headers["Retry-After"]) <= 60
    other.hit(f"{form} of another caller")


def test_a_replica_counts_itself_while_redis_is_away(
    server: RedisServer, rates: Callable[..., Rates]
) -> None:
    moment = 0.0
    replica = rates(server.urls["password"], clock=lambda: moment)
    replica.hit("caller")
    server.stop()
    try:
        for _ in range(3):
            replica.hit("caller")
        with pytest.raises(ProblemError):
            replica.hit("caller")
    finally:
        server.start()
    moment = 10.0
    # The server has forgotten its counts.
    for _ in range(3):
        replica.hit("caller")
    with pytest.raises(ProblemError):
        replica.hit("caller")


def test_requests_do_not_wait_for_a_redis_that_hangs(rates: Callable[..., Rates]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        replica = rates(f"redis://127.0.0.1:{silent.getsockname()[1]}", "1000/minute")
        began = time.monotonic()
        for _ in range(100):
            replica.hit("caller")
        assert time.monotonic() - began < 3.0


def test_a_wrong_password_does_not_refuse_requests(server: RedisServer, rates: Callable[..., Rates]) -> None:
    replica = rates(f"redis://:wrong-s3cretpw@127.0.0.1:{server.port}")
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            replica.hit("caller")
        with pytest.raises(ProblemError):
            replica.hit("caller")
    assert [each["reason"] for each in logged] == ["AuthenticationError"]
    assert "s3cretpw" not in str(logged)


@for_each(
    "url",
    [
        "redis://:s3cretpw@127.0.0.1:port/0",
        "redis://:s3cretpw@127.0.0.1:99999/0",
        "redis://127.0.0.1/0?s3cretpw=1",
        "redis://127.0.0.1/0?socket_timeout=s3cretpw",
        "redis://[s3cretpw/0",
    ],
)
def test_a_url_that_the_driver_does_not_understand_is_refused_without_it(url: str) -> None:
    pytest.importorskip("redis", reason="the driver of Redis is not installed: make setup")
    with pytest.raises(InvalidInput, match="redis://:PASSWORD@HOST") as caught:
        Rates("3/minute", url)
    assert "s3cretpw" not in caught.value.message


def test_without_the_driver_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra) as caught:
        redis_pool("redis://cache", 1.0)
    assert "straggler-rca[redis]" in str(caught.value.hint)


@for_each("url", ["memory://", "sqlite:///redis.db", "postgresql://redis", "redis", "redis://", ""])
def test_other_urls_are_no_redis(url: str) -> None:
    assert not is_redis(url)
