"""A caller that is refused while it sends can read the reason."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.types import Message, Receive, Scope, Send

from rca_api.shell.requests import middleware
from rca_api.shell.requests.middleware import DrainBody

pytestmark = pytest.mark.system

CHUNK: Message = {"type": "http.request", "body": bytes(1 << 20), "more_body": True}
AT_MOST = 64 << 20
END: Message = {"type": "http.request", "body": b"", "more_body": False}


def refusing(connection: bytes, read: int = 0) -> Any:
    """An application that answers after so many chunks."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(read):
            await receive()
        await send({"type": "http.response.start", "status": 503, "headers": [(b"connection", connection)]})
        await send({"type": "http.response.body", "body": b"busy"})

    return app


def answered(app: Any, incoming: list[Message], **asked: Any) -> tuple[list[Message], int]:
    """What was sent, and how many messages were left; a caller without any sends nothing more, and stays."""
    sent: list[Message] = []
    left = list(incoming)

    async def receive() -> Message:
        return left.pop(0) if left else await asyncio.Future()

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "http_version": "1.1", "headers": []} | asked
    asyncio.run(DrainBody(app, AT_MOST)(scope, receive, send))
    return sent, len(left)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 16 << 20, 80 << 20])
def test_an_answer_before_the_body_is_there_is_read(size: int, url: str) -> None:
    at = urlsplit(url)
    connection = HTTPConnection(at.hostname or "", at.port, timeout=60)
    headers = {"Content-Type": "application/json", "Content-Encoding": "br"}
    connection.request("POST", "/v1/diagnoses", bytes(size), headers)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Connection"]) == (415, "close")
    assert json.loads(answer.read())["code"] == "unsupported-encoding"
    connection.close()


def test_the_answer_is_there_before_the_body_and_ends_after_it() -> None:
    sent, left = answered(refusing(b"Close, TE"), [CHUNK, CHUNK, END])
    assert left == 0
    assert [(each.get("body"), each.get("more_body", False)) for each in sent[1:]] == [
        (b"busy", True),
        (None, False),
    ]


@pytest.mark.parametrize(("connection", "read"), [(b"keep-alive", 0), (b"close", 3)])
def test_who_stays_connected_or_has_sent_all_is_answered_at_once(connection: bytes, read: int) -> None:
    sent, left = answered(refusing(connection, read), [CHUNK, CHUNK, END])
    assert left == 3 - read
    assert [each.get("more_body", False) for each in sent[1:]] == [False]


def test_a_disconnected_caller_is_not_waited_for() -> None:
    assert answered(refusing(b"close"), [CHUNK, {"type": "http.disconnect"}, CHUNK])[1] == 1


def test_draining_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "DRAIN_SECONDS", 0.05)
    sent, left = answered(refusing(b"close"), [CHUNK])
    assert (left, sent[-1].get("more_body", False)) == (0, False)
    sent, left = answered(refusing(b"close"), [CHUNK] * 100)
    assert (left, sent[-1].get("more_body", False)) == (100 - AT_MOST // len(CHUNK["body"]), False)


def test_the_number_of_drained_connections_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four callers two may be waited for; a fifth comes when these are gone."""
    monkeypatch.setattr(middleware, "DRAIN_SECONDS", 0.2)
    monkeypatch.setattr(middleware, "MAX_DRAINING", 2)
    app = DrainBody(refusing(b"close"), AT_MOST)
    scope = {"type": "http", "http_version": "1.1", "headers": []}

    async def stays_open() -> bool:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            # As a socket does, it gives way to the others.
            await asyncio.sleep(0.001)
            sent.append(message)

        await app(scope, asyncio.Future, send)
        return len(sent) == 3

    async def callers() -> tuple[list[bool], bool]:
        return await asyncio.gather(*(stays_open() for _ in range(4))), await stays_open()

    assert asyncio.run(callers()) == ([True, True, False, False], True)


@pytest.mark.parametrize(
    "asked",
    [{"headers": [(b"connection", b"close")]}, {"http_version": "1.0"}],
    ids=["the caller closes", "HTTP/1.0"],
)
def test_connections_that_close_by_the_callers_wish_linger_as_well(asked: dict[str, Any]) -> None:
    assert answered(refusing(b"keep-alive"), [CHUNK, END], **asked)[1] == 0


def test_who_waits_to_be_invited_sends_nothing() -> None:
    asked = {"headers": [(b"expect", b"100-continue")]}
    sent, left = answered(refusing(b"close"), [CHUNK, END], **asked)
    assert (left, len(sent)) == (2, 2)
    # Once somebody has begun to read, he has been.
    assert answered(refusing(b"close", read=1), [CHUNK, CHUNK, END], **asked)[1] == 0


def test_other_connections_are_none_of_its_business() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(await receive())

    sent, _ = answered(app, [{"type": "lifespan.startup"}], type="lifespan")
    assert sent == [{"type": "lifespan.startup"}]
