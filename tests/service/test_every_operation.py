"""The fuzzer calls every operation of the OpenAPI document, with and without authentication."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

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
from test_model_endpoints import FakeRegistry
from watched import asked, post

from rca_api.shell.app import create_app
from rca_api.shell.demo import running_service
from rca_api.shell.security import keys
from rca_api.shell.security.principal import Scope
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.database import Database

pytestmark = [pytest.mark.slow, pytest.mark.system]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
#: The fuzzer cannot write these; tests of their own do.
UNWRITABLE = {"multipart/form-data", "application/vnd.apache.parquet"}
OPEN_TO_ALL = {"/healthz", "/readyz", "/metrics"}
MODES = list(schemathesis.GenerationMode)
Seen = dict[str, Counter[int]]
Send = Callable[[schemathesis.Case], Any]


@cache
def document() -> dict[str, Any]:
    """The document, without the bodies that cannot be made up."""
    found: dict[str, Any] = create_app().openapi()
    for path in found["paths"].values():
        for operation in path.values():
            content = operation.get("requestBody", {}).get("content", {})
            for kind in UNWRITABLE & set(content):
                del content[kind]
    return found


def operations() -> Iterator[Any]:
    for found in schemathesis.openapi.from_dict(document()).get_all_operations():
        yield found.ok()


def ask(operation: Any, mode: schemathesis.GenerationMode, n_examples: int, send: Send) -> Counter[int]:
    """Statuses of the answers to requests that are made up, the same ones each time."""
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=n_examples,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers(case: schemathesis.Case) -> None:
        statuses[send(case).status_code] += 1

    try:
        answers()
    except Unsatisfiable:
        # Nothing about this operation can be wrong.
        assert mode is schemathesis.GenerationMode.NEGATIVE
    return statuses


def named(operation: Any) -> str:
    return f"{operation.method.upper()} {operation.path}"


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, make_window: Any
) -> Iterator[tuple[str, dict[str, str]]]:
    """A service with something of each kind in it, and the names of that."""
    data = tmp_path_factory.mktemp("fuzzed")
    with running_service(settings={"RCA_DATA_DIR": str(data), "RCA_PROCESSES": "1"}) as url:
        window = make_window(8, 60, late={3: 0.1}, phase="data_loading_seconds").to_json()
        _, diagnosis = post(url, window)
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(f"{url}/v1/jobs/test/telemetry", window, headers)):
            pass
        place = f"{url}/v1/diagnoses/{diagnosis['diagnosis_id']}"
        feedback = asked(f"{place}/feedback", {"verdict": "confirmed"})
        incidents = asked(f"{url}/v1/incidents")["items"]
        webhook = asked(f"{url}/v1/webhooks", {"url": "https://hooks.example.org/"})
        asked(f"{url}/v1/data-shards", {"name": "set", "n_samples": 20, "shard_size": 8})
        known = {
            "name": "set",
            "diagnosis_id": diagnosis["diagnosis_id"],
            "digest": asked(f"{url}/v1/diagnoses")["items"][0]["window_digest"],
            "feedback_id": feedback["id"],
            "job_id": "test",
            "node": "node-1",
            "cause": "hang",
            "webhook_id": webhook["id"],
            "run_id": asked(f"{url}/v1/training-runs", {"windows": 200})["id"],
        }
        yield url, known | ({"incident_id": incidents[0]["id"]} if incidents else {})


def test_every_operation_gives_documented_answers(served: tuple[str, dict[str, str]]) -> None:
    url, known = served
    seen: Seen = {}
    for operation in operations():
        for mode in MODES:

            def send(case: schemathesis.Case, mode: schemathesis.GenerationMode = mode) -> Any:
                # Half of the requests are about what is there: made-up ids alone would never get far. But
                # what is deleted would be missing for those that come later.
                there = mode is schemathesis.GenerationMode.POSITIVE and case.method != "DELETE"
                if there and case.path_parameters:
                    case.path_parameters |= {k: known[k] for k in known.keys() & case.path_parameters.keys()}
                answer = case.call(base_url=url)
                # The description of the document has this status, for all addresses.
                if answer.status_code != 414:
                    case.validate_response(answer, checks=CHECKS)
                return answer

            seen.setdefault(named(operation), Counter()).update(ask(operation, mode, 2, send))
    everything = {f"{method.upper()} {path}" for path, held in document()["paths"].items() for method in held}
    assert set(seen) == everything
    assert [name for name, statuses in seen.items() if not statuses] == []
    # What is only looked at is found when it is asked for by its own name.
    blind = {name for name, statuses in seen.items() if name.startswith("GET") and 200 not in statuses}
    assert blind <= {
        # There is no registry here; `test_models_behind_a_registry` has one.
        "GET /v1/models/{version}",
        "GET /v1/models/{version}/shadow",
    }


@asynccontextmanager
async def nothing_beside(_: Any) -> AsyncIterator[None]:
    yield


def test_models_behind_a_registry(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path, tracking_uri="http://registry", follow_seconds=0))
    app.state.parts = replace(app.state.parts, registry=FakeRegistry())
    app.state.parts.database.upgrade()
    # The fuzzer would start and end the whole service around every request.
    app.router.lifespan_context = nothing_beside
    statuses: Counter[int] = Counter()

    def send(case: schemathesis.Case) -> Any:
        if case.path_parameters:
            case.path_parameters["version"] = "2"
        return case.call_and_validate(checks=CHECKS)

    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    for found in schema.include(tag=["models"]).get_all_operations():
        for mode in MODES:
            statuses.update(ask(found.ok(), mode, 3, send))
    app.state.parts.database.close()
    assert statuses[200] > 0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A service with authentication, and keys by scope."""
    data = tmp_path_factory.mktemp("guarded")
    database = Database(f"sqlite:///{data / 'rca.db'}")
    database.upgrade()
    with database.session() as session:
        made = {scope.value: keys.create(session, "x", (scope,))[1] for scope in (Scope.read, Scope.admin)}
    database.close()
    strict = {"RCA_DATA_DIR": str(data), "RCA_PROCESSES": "1", "RCA_AUTH": "keys", "RCA_RATE_LIMIT": ""}
    with running_service(settings=strict) as url:
        yield url, made


def test_every_operation_refuses_requests_without_credential(guarded: tuple[str, dict[str, str]]) -> None:
    url, _ = guarded
    for operation in operations():

        def send(case: schemathesis.Case) -> Any:
            # Credentials are made up, too, where the document names them.
            case.headers = {
                name: value
                for name, value in (case.headers or {}).items()
                if name.lower() not in {"authorization", "x-api-key"}
            }
            return case.call_and_validate(base_url=url, checks=CHECKS)

        statuses = ask(operation, schemathesis.GenerationMode.POSITIVE, 1, send)
        assert set(statuses) == ({200} if operation.path in OPEN_TO_ALL else {401}), named(operation)


@pytest.mark.parametrize("scope", ["read", "admin"])
def test_a_key_opens_what_it_is_for(guarded: tuple[str, dict[str, str]], scope: str) -> None:
    url, made = guarded
    headers = {"Authorization": f"Bearer {made[scope]}"}
    seen: Seen = {}
    for operation in operations():
        if not operation.path.startswith(("/v1/incidents", "/v1/nodes", "/v1/webhooks", "/v1/training-runs")):
            continue

        def send(case: schemathesis.Case) -> Any:
            return case.call_and_validate(base_url=url, headers=headers, checks=CHECKS)

        seen[named(operation)] = ask(operation, schemathesis.GenerationMode.POSITIVE, 2, send)
    refused = {name for name, statuses in seen.items() if 403 in statuses}
    if scope == "admin":
        assert refused == set()
    else:
        changing = {name for name in seen if not name.startswith("GET")}
        assert refused == changing | {name for name in seen if "/v1/webhooks" in name}
    with urlopen(Request(f"{url}/v1/incidents", headers=headers)) as answer:
        assert answer.status == 200
