"""Requests generated from the OpenAPI document: every answer is one that is documented."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from rca_api.shell.app import create_app

pytestmark = [pytest.mark.slow, pytest.mark.system]

OPERATIONS = [
    ("/v1/diagnoses", "POST", 12),
    ("/v1/diagnoses/batch", "POST", 6),
    ("/v1/diagnoses", "GET", 12),
    ("/v1/diagnoses/{diagnosis_id}", "GET", 8),
    ("/v1/windows/{digest}", "GET", 8),
]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_made_up_windows_get_documented_answers(url: str, mode: schemathesis.GenerationMode) -> None:
    document = create_app().openapi()
    # Made-up multipart bodies would need Arrow streams, which the fuzzer cannot write.
    for path in ("/v1/diagnoses", "/v1/diagnoses/batch"):
        del document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]
    schema = schemathesis.openapi.from_dict(document)
    seen: set[int] = set()

    # Derandomized and without shrinking: the same requests each time, in a bounded time.
    for path, method, n_examples in OPERATIONS:

        @settings(
            max_examples=n_examples,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=schema[path][method].as_strategy(generation_mode=mode))
        def answers(case: schemathesis.Case) -> None:
            answer = case.call(base_url=url)
            seen.add(answer.status_code)
            # The description of the document has this status, for all addresses.
            if answer.status_code != 414:
                case.validate_response(answer, checks=CHECKS)

        try:
            answers()
        except Unsatisfiable:
            # Nothing about this operation can be generated in this mode.
            assert mode is schemathesis.GenerationMode.NEGATIVE
    # Some requests must have got as far as the window itself, or nothing was tried.
    assert 422 in seen
