"""The committed OpenAPI document: current, 3.1, and true of what the service takes and gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest
from bad_windows import WHOLE
from starlette.testclient import TestClient

from rca_api.shell import openapi

COMMITTED = Path("api/openapi.json")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    held: dict[str, Any] = orjson.loads(COMMITTED.read_bytes())
    return held


def check(document: dict[str, Any], name: str, instance: object) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema_rs.Draft202012Validator(schema).validate(instance)


def test_the_committed_document_is_current() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == openapi.text(), "run `make openapi`"


def test_it_is_openapi_3_1_with_resolvable_references(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    held = document["components"]["schemas"]
    wanted = {part.split('"')[0] for part in COMMITTED.read_text().split('"#/components/schemas/')[1:]}
    assert wanted <= set(held)


def test_limits_are_keywords_of_json_schema() -> None:
    """Pydantic writes them under its own names if a validator of another kind comes first."""
    text = COMMITTED.read_text()
    own_names = ("ge", "le", "gt", "lt", "min_length", "max_length", "allow_inf_nan", "strict")
    assert [name for name in own_names if f'"{name}":' in text] == []


def test_a_valid_window_and_its_example_follow_the_schema(document: dict[str, Any]) -> None:
    check(document, "TelemetryWindow", orjson.loads(WHOLE))
    for example in document["components"]["schemas"]["TelemetryWindow"]["examples"]:
        check(document, "TelemetryWindow", example)


@pytest.mark.system
@pytest.mark.smoke
def test_answers_follow_the_schema(document: dict[str, Any], client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    check(document, "Diagnosis", client.post("/v1/diagnoses", content=WHOLE, headers=headers).json())
    check(document, "Problem", client.post("/v1/diagnoses", content=b"[]", headers=headers).json())
    check(document, "Ready", client.get("/readyz").json())
    check(document, "DiagnosisList", client.get("/v1/diagnoses").json())


def test_every_answer_of_the_endpoint_is_declared(document: dict[str, Any]) -> None:
    declared = set(document["paths"]["/v1/diagnoses"]["post"]["responses"])
    by_access = {"401", "403", "429"}
    refused = {"400", "406", "408", "409", "410", "413", "415", "422", "500", "503", "504"}
    assert declared == {"200", "202"} | by_access | refused
