"""Requests made up from the OpenAPI document: whatever arrives, the answer is one that is documented."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = [("POST", "/v1/diagnoses"), ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics")]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_made_up_requests_get_documented_answers(
    client: TestClient, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    cases = schema[path][method].as_strategy(generation_mode=mode)

    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def answers(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=str(client.base_url), session=client, checks=CHECKS)

    answers()
