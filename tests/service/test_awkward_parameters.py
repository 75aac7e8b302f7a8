"""Values at the edges of what a query parameter can hold: the fuzzer hardly ever draws them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from tests.for_each import for_each

MOMENTS = [
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+23:00",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-23:59",
    "2026-02-30T00:00:00Z",
    "2026-01-01T00:00:00",
    "253402300800",
    "-1e300",
]
TEXTS = ["", "\0", "a\0b", "%", "_", "'", "x" * 5000, "\U0010ffff", "../..", "-1"]
NUMBERS = ["0", "-1", "201", str(2**31), str(2**63), "1e3", "NaN"]
AWKWARD = {"date-time": MOMENTS, "string": TEXTS, "integer": NUMBERS, "boolean": ["maybe", "2"]}


def kinds_of(schema: dict[str, Any]) -> Iterator[str]:
    for each in schema.get("anyOf", [schema]):
        kind = each.get("format", each.get("type", "string"))
        if kind in AWKWARD:
            yield kind


def lists() -> Iterator[tuple[str, str, str]]:
    """Path, parameter and a value, for all that is listed."""
    for path, operations in create_app().openapi().get("paths", {}).items():
        for parameter in operations.get("get", {}).get("parameters", []):
            if parameter["in"] == "query" and "{" not in path:
                for kind in kinds_of(parameter["schema"]):
                    yield from ((path, parameter["name"], value) for value in AWKWARD[kind])


@pytest.mark.system
def test_no_value_of_a_parameter_makes_the_service_fail(client: TestClient) -> None:
    tried = {asked: client.get(asked[0], params={asked[1]: asked[2]}).status_code for asked in lists()}
    moments = {path for path, name, _ in tried if name == "since"}
    assert moments >= {"/v1/diagnoses", "/v1/incidents", "/v1/feedback"}
    assert {asked: status for asked, status in tried.items() if status not in (200, 422)} == {}


def test_lists_accept_any_moment_of_the_calendar(client: TestClient) -> None:
    for path in ("/v1/diagnoses", "/v1/incidents", "/v1/feedback"):
        for moment, status in zip(MOMENTS[:4], (200, 422, 200, 422), strict=True):
            assert client.get(path, params={"since": moment}).status_code == status, (path, moment)


@for_each(
    "moment",
    ["2026-11-26T09:00", "2026-11-26T09:00Z", "2026-13-26T09:00:00Z", "2026-11-26T25:00:00Z", "2026-11-26"],
)
def test_a_moment_that_is_none_is_refused_with_an_accepted_one(client: TestClient, moment: str) -> None:
    refused = client.get("/v1/diagnoses", params={"since": moment})
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith("query.since: needs a time with a time zone, such as 2026-")


def test_bytes_that_are_no_text_are_refused_or_searched_for(client: TestClient) -> None:
    for path in ("/v1/diagnoses", "/v1/incidents"):
        assert client.get(f"{path}?job=%ED%A0%80%FF").status_code in (200, 422)
