"""The OpenAPI document is true: addresses, methods, parameters, types and statuses of every operation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import BaseModel, ValidationError
from starlette.testclient import TestClient

from rca.errors import InvalidInput
from rca_api.actions.schemas import NewAction
from rca_api.feedback.schemas import NewFeedback
from rca_api.models.schemas import PromotionRequest, RollbackRequest
from rca_api.shell.app import create_app
from rca_api.shell.requests.problems import CATALOGUE
from rca_api.shell.security import keys
from rca_api.shell.security.principal import Scope
from rca_api.shell.settings.settings import Settings
from rca_api.training_runs.schemas import TrainingOrder
from rca_api.webhooks.schemas import NewWebhook, WebhookChange
from tests.for_each import for_each

#: The committed document, which `test_openapi_document` compares with the service's own.
DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parents[2] / "api" / "openapi.json").read_text())
PATHS: dict[str, dict[str, Any]] = DOCUMENT["paths"]
OPERATIONS = [(path, method, held) for path, methods in PATHS.items() for method, held in methods.items()]
OPEN_TO_ALL = {"/healthz", "/readyz", "/metrics"}
#: A value for each parameter of an address.
KNOWN = {"version": "1", "cause": "hang", "digest": "0" * 64, "job_id": "job-1", "node": "node-1"}
CONTROL = ["a\nb", "\n", "a\r", "\0", "\x1b[0m", "\x7f", "\x85", "\u2028", "\u202e", "\u200b"]
JSON = {"Content-Type": "application/json"}


def address(path: str, **values: str) -> str:
    """The address of an operation, with a value for each of its parameters."""
    return re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], KNOWN.get(name[1], "0" * 32)), path)


def parameters(place: str, operation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Schema by name, of the parameters in the path or the query string; null is left out."""
    held = {each["name"]: each["schema"] for each in operation.get("parameters", ()) if each["in"] == place}
    return {
        name: next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema)
        for name, schema in held.items()
    }


def named(path: str, method: str) -> str:
    return f"{method.upper()} {path}"


# Statuses


def test_every_operation_declares_what_all_of_its_kind_answer() -> None:
    missing = {}
    for path, method, operation in OPERATIONS:
        expected = {"422", "500"}
        if path not in OPEN_TO_ALL:
            expected |= {"401", "403", "429", "503"}
        if method in ("post", "put", "patch"):
            expected |= {"408", "413"}
        if "requestBody" in operation:
            expected |= {"400", "415"}
        missing[named(path, method)] = expected - set(operation["responses"])
    assert {name: statuses for name, statuses in missing.items() if statuses} == {}


def test_the_document_says_what_comes_besides_the_operations() -> None:
    description = DOCUMENT["info"]["description"]
    for code in (
        "not-found",
        "method-not-allowed",
        "http-error",
        "head-timeout",
        "url-too-long",
        "head-too-large",
    ):
        assert f"{CATALOGUE[code].status} `{code}`" in description


@pytest.mark.parametrize(
    "value", [*CONTROL, "", " ", "\ufffd", "x" * 3000, "%", "..", "\U0010ffff"], ids=ascii
)
def test_any_value_in_an_address_gets_a_declared_status(client: TestClient, value: str) -> None:
    undeclared = {}
    for path, method, operation in OPERATIONS:
        for name in parameters("path", operation):
            answer = client.request(method, address(path, **{name: quote(value, safe="")}))
            # Without a segment, or with ".." for it, this is the address of another operation or of none.
            elsewhere = value in ("", "..") and answer.status_code in (404, 405)
            if str(answer.status_code) not in operation["responses"] and not elsewhere:
                undeclared[named(path, method), name] = answer.status_code
    assert undeclared == {}


@for_each("value", CONTROL, ids=ascii)
def test_a_control_character_in_a_name_is_refused_not_unknown(client: TestClient, value: str) -> None:
    for path in ("/v1/jobs/{job_id}/incidents", "/v1/nodes/{node}/history"):
        name = "job_id" if "job" in path else "node"
        answer = client.get(address(path, **{name: quote(value, safe="")}))
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameters"), path
        assert name in answer.json()["detail"]


def test_names_with_slashes_are_found_in_addresses(client: TestClient) -> None:
    assert client.get("/v1/jobs/team/llm%2F7b/incidents").json()["items"] == []
    assert "'rack/1'" in client.get("/v1/nodes/rack/1/history").json()["detail"]


def test_a_slash_at_the_end_is_another_address(client: TestClient) -> None:
    for path in ("/v1/diagnoses/", "/v1/incidents/", "/healthz/"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers.get("location")) == (404, None)


# Methods


@for_each("path", PATHS)
def test_every_other_method_gets_405_and_all_methods_of_the_address(client: TestClient, path: str) -> None:
    methods = {method.upper() for method in PATHS[path]}
    for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - methods:
        answer = client.request(method, address(path))
        assert answer.status_code == 405, method
        assert set(answer.headers["allow"].split(", ")) == methods


def test_allow_names_methods_that_work_but_are_not_documented(client: TestClient) -> None:
    assert set(client.delete("/openapi.json").headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert client.head("/openapi.json").status_code == 200


# Query strings


@for_each(("path", "method", "operation"), OPERATIONS, ids=lambda each: str(each)[:60])
def test_unknown_query_parameters_are_refused_with_the_known_ones(
    client: TestClient, path: str, method: str, operation: dict[str, Any]
) -> None:
    known = list(parameters("query", operation))
    answer = client.request(method, address(path) + "?nonsense=1")
    if operation["tags"] == ["operations"]:
        # Probes may add a parameter against caches.
        assert answer.status_code in (200, 503)
        return
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameters")
    assert "'nonsense'" in answer.json()["detail"]
    assert answer.json()["expected"].split(", ") == (known or ["no parameters"])
    for name in known:
        close = client.request(method, address(path) + f"?{name[:-1]}s{name[-1]}=1").json()
        assert close["hint"] == f"did you mean {name}?"


def test_a_query_parameter_is_given_once(client: TestClient) -> None:
    answer = client.get("/v1/diagnoses?limit=1&limit=2")
    assert answer.status_code == 422
    assert answer.json()["detail"] == "query.limit: is given 2 times"


def test_a_long_unknown_name_is_cut_and_a_strangers_is_not_looked_at(client: TestClient) -> None:
    assert len(client.get(f"/v1/nodes?{'x' * 5000}=1").text) < 1000
    strict = create_app(Settings(auth="keys"))
    strict.state.parts.database.upgrade()
    assert TestClient(strict).get("/v1/nodes?nonsense=1").status_code == 401
    strict.state.parts.database.close()


SPELLINGS = {
    "boolean": (["true", "false"], ["1", "0", "on", "off", "yes", "t", "True", "TRUE", "", " true", "null"]),
    "integer": (["1", "20"], ["+1", " 1", "1 ", "1.0", "1e1", "1_0", "01", "\u0661", "0x1", "", "true"]),
    "date-time": (
        [
            "2026-01-01T00:00:00Z",
            "2026-01-01t00:00:00z",
            "2026-01-01 00:00:00.123456%2B02:00",
            "2026-01-01T00:00:00-00:00",
        ],
        [
            "0.5",
            "0",
            "1700000000",
            "1e9",
            "2026-01-01",
            "2026-01-01T00:00Z",
            "2026-01-01T00:00:00",
            "20260101T000000Z",
            "2026-01-01T00:00:00+02:00",
            "2026-01-01T00:00:00%2B0200",
            "2026-13-01T00:00:00Z",
            "2026-01-01T25:00:00Z",
            "\u0662026-01-01T00:00:00Z",
            "",
            "now",
        ],
    ),
}


@pytest.mark.system
def test_each_value_in_a_query_has_one_spelling(client: TestClient) -> None:
    seen, wrong = set(), {}
    for path, method, operation in OPERATIONS:
        for name, schema in parameters("query", operation).items():
            kind = schema.get("format", schema.get("type"))
            if kind not in SPELLINGS:
                continue
            seen.add(kind)
            for expected, spellings in zip((False, True), SPELLINGS[kind], strict=True):
                for spelling in spellings:
                    answer = client.request(method, f"{address(path)}?{name}={spelling}")
                    refused = answer.status_code == 422 and f"query.{name}: " in answer.json()["detail"]
                    if refused is not expected:
                        wrong[named(path, method), name, spelling] = answer.status_code
    assert wrong == {}
    assert seen == set(SPELLINGS)


@for_each("value", CONTROL, ids=ascii)
def test_names_in_a_query_have_no_control_characters(client: TestClient, value: str) -> None:
    found = {
        (path, name): client.get(path, params={name: value}).status_code
        for path, method, operation in OPERATIONS
        for name, schema in parameters("query", operation).items()
        if method == "get" and "{" not in path and schema.get("type") == "string"
    }
    assert set(found.values()) == {422}
    assert {name for _, name in found} >= {"job", "node", "cause", "cursor"}


# Bodies

FEEDBACK = {
    "verdict": "corrected",
    "label": {
        "failure_mode": "fail_slow",
        "causes": [
            {
                "cause": "cpu_contention",
                "ranks": [1],
                "nodes": ["node-1"],
                "first_step": 3,
                "last_step": 4,
                "severity": 0.5,
            }
        ],
    },
    "reported_by": "on-call",
    "note": "a backup ran",
}
ACTION = {
    "action": "drain_node",
    "taken_at": "2026-11-21T20:11:00Z",
    "nodes": ["node-1"],
    "ranks": [1],
    "note": "cable replaced",
    "diagnosis_id": "0" * 32,
    "key": "ticket-7",
}
WEBHOOK = {
    "url": "https://hooks.example.org/",
    "events": ["incident.opened"],
    "job_id": "job-1",
    "causes": ["cpu_contention"],
    "description": "pager",
}
TRAINING = {
    "windows": 200,
    "seed": 1,
    "collections": ["mine"],
    "include_feedback": True,
    "gate_windows": 20,
}
BODIES: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (NewFeedback, FEEDBACK),
    (NewAction, ACTION),
    (NewWebhook, WEBHOOK),
    (WebhookChange, WEBHOOK | {"active": True}),
    (TrainingOrder, TRAINING),
    (PromotionRequest, {"force": "urgent", "windows": 20}),
    (RollbackRequest, {"from": 3, "reason": "blames healthy nodes"}),
]


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every single value of a document and its place."""
    items = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    )
    if items is None:
        yield place, value
        return
    for key, item in items:
        yield from leaves(item, (*place, key))


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy of a document with another value at one place."""
    if not place:
        return new
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[place[0]] = replaced(value[place[0]], place[1:], new)
    return copy


def other_types(value: Any) -> list[Any]:
    """Values of other JSON types that stand for the same thing."""
    if isinstance(value, bool):
        return [int(value), str(value).lower(), "on", float(value)]
    if isinstance(value, int):
        return [str(value), value + 0.5, True]
    if isinstance(value, float):
        return [str(value), True]
    return [5, True, [value]]


@for_each(("model", "document"), BODIES, ids=lambda each: getattr(each, "__name__", ""))
def test_no_value_in_a_body_is_taken_for_another_type(
    model: type[BaseModel], document: dict[str, Any]
) -> None:
    model.model_validate(document)
    for place, value in leaves(document):
        for other in other_types(value):
            with pytest.raises(ValidationError) as caught:
                model.model_validate(replaced(document, place, other))
            assert caught.value.errors()[0]["loc"][: len(place)] == place


@for_each("value", CONTROL, ids=ascii)
@for_each(("model", "document"), BODIES, ids=lambda each: getattr(each, "__name__", ""))
def test_texts_in_bodies_have_no_control_characters(
    model: type[BaseModel], document: dict[str, Any], value: str
) -> None:
    accepted = []
    for place, before in leaves(document):
        # The catalogue is looked up later, and has no such cause either.
        if isinstance(before, str) and place[-1] != "cause":
            try:
                model.model_validate(replaced(document, place, f"{before}{value}"))
            except ValidationError:
                continue
            accepted.append(place)
    # A note may have several lines.
    has_note = model in (NewFeedback, NewAction)
    assert accepted == ([("note",)] if has_note and set(value) & set("\n\r") else [])


def test_a_number_for_a_boolean_is_refused_over_http(client: TestClient) -> None:
    answer = client.post("/v1/training-runs", json={"windows": 200, "include_feedback": 0})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameters")
    assert "include_feedback" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, "unsupported-media-type"),
        ({}, "unsupported-media-type"),
        (JSON | {"Content-Encoding": "gzip"}, "unsupported-encoding"),
    ],
    ids=["form", "no type", "compressed"],
)
def test_short_bodies_are_plain_json(client: TestClient, headers: dict[str, str], code: str) -> None:
    for path in ("/v1/webhooks", "/v1/training-runs", "/v1/models/rollback"):
        answer = client.post(path, content=b"{}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, code)


@for_each("name", [*CONTROL, "", " ", "x" * 129], ids=lambda name: ascii(name[:10]))
def test_names_of_keys_are_printable(client: TestClient, name: str) -> None:
    with client.app.state.parts.database.session() as session, pytest.raises(InvalidInput, match="name"):
        keys.create(session, name, [Scope.read])
