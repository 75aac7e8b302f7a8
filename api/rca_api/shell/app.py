"""The application factory; `rca serve` runs it.

Without it:
`uvicorn --factory rca_api.shell.app:create_app --http rca_api.shell.requests.request_heads:BoundedHeads`,
with `--ws none --no-proxy-headers`. uvicorn's own protocol has no limits on headers. With proxy headers it
trusts forwarded addresses that come from this machine.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from rca_api import (
    data_shards,
    diagnoses,
    feedback,
    incidents,
    jobs,
    models,
    nodes,
    plans,
    runbooks,
    training_runs,
    webhooks,
    what_if,
)
from rca_api.actions import endpoints as action_endpoints
from rca_api.data_shards import endpoints as data_shard_endpoints
from rca_api.diagnoses import endpoints as diagnosis_endpoints
from rca_api.diagnoses.schemas import ArrowWindow, TelemetryWindow, WindowBatch
from rca_api.feedback import endpoints as feedback_endpoints
from rca_api.hooks import endpoints as hook_endpoints
from rca_api.incidents import endpoints as incident_endpoints
from rca_api.jobs import endpoints as job_endpoints
from rca_api.models import endpoints as model_endpoints
from rca_api.nodes import endpoints as node_endpoints
from rca_api.plans import endpoints as plan_endpoints
from rca_api.runbooks import endpoints as runbook_endpoints
from rca_api.shell import health
from rca_api.shell.lifespan import lifespan
from rca_api.shell.observability import logs, tracing
from rca_api.shell.requests import problems
from rca_api.shell.requests.middleware import DrainBody, RequestContext, SecurityHeaders, Shedding
from rca_api.shell.settings import environment
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.stored_windows import endpoints as window_endpoints
from rca_api.training_runs import endpoints as training_run_endpoints
from rca_api.ui import endpoints as ui_endpoints
from rca_api.ui import viewer
from rca_api.webhooks import endpoints as webhook_endpoints
from rca_api.what_if import endpoints as what_if_endpoints
from rca_api.what_if.schemas import AskedScenarios, TraceWithScenarios

_DESCRIPTION = """Every error is a problem document (RFC 9457) with a `code`.

Besides the answers of an operation there are these:

- 404 `not-found` for an address that is not listed here.
- 405 `method-not-allowed` for a method that is not listed; `Allow` names the others of the address.
- 400 `http-error`, 408 `head-timeout`, 414 `url-too-long` and 431 `head-too-large` for a request whose head
  is malformed, late or too large.
"""

#: In the order of the OpenAPI document.
_RESOURCES = (
    diagnosis_endpoints,
    window_endpoints,
    job_endpoints,
    data_shard_endpoints,
    plan_endpoints,
    runbook_endpoints,
    feedback_endpoints,
    incident_endpoints,
    action_endpoints,
    node_endpoints,
    hook_endpoints,
    webhook_endpoints,
    what_if_endpoints,
    training_run_endpoints,
    model_endpoints,
    health,
)


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build the service.

    Parameters
    ----------
    settings : Settings, optional
        Read from ``RCA_*`` environment variables if not given.
    """
    settings = settings or environment.read()
    logs.configure(settings.log_level)
    environment.warn_of_unknown()
    tracing.start(settings.tracing)
    state = State.build(settings)
    app = FastAPI(
        title="straggler-rca",
        summary="Find why a distributed training job is slow or stopped, on which ranks, and what to do.",
        version=version("straggler-rca"),
        lifespan=lifespan,
        openapi_tags=[
            {"name": "diagnoses", "description": diagnoses.__doc__},
            {"name": "jobs", "description": jobs.__doc__},
            {"name": "data shards", "description": data_shards.__doc__},
            {"name": "plans", "description": plans.__doc__},
            {"name": "runbooks", "description": runbooks.__doc__},
            {"name": "feedback", "description": feedback.__doc__},
            {"name": "incidents", "description": incidents.__doc__},
            {"name": "nodes", "description": nodes.__doc__},
            {"name": "webhooks", "description": webhooks.__doc__},
            {"name": "what-if", "description": what_if.__doc__},
            {"name": "training runs", "description": training_runs.__doc__},
            {"name": "models", "description": models.__doc__},
            {"name": "operations", "description": health.__doc__},
        ],
        description=_DESCRIPTION,
        # A redirect would be an answer that the document does not have.
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.parts = state
    problems.install(app, settings.retry_after_seconds)
    app.add_middleware(RequestContext, metrics=state.metrics, deadline_seconds=settings.deadline_seconds)
    app.add_middleware(
        Shedding, admission=state.admission, metrics=state.metrics, at_most=int(settings.max_body_bytes)
    )
    app.add_middleware(SecurityHeaders)
    # The last one added is the outermost.
    app.add_middleware(DrainBody, at_most=int(settings.max_body_bytes))
    for each in _RESOURCES:
        app.include_router(each.router)
    webhook_endpoints.document_messages(app)
    viewer.install(app)
    ui_endpoints.install(app)
    # FastAPI's documented way to replace its OpenAPI document.
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """Build the OpenAPI 3.1 document once; it includes schemas of the bodies that FastAPI does not parse."""
    if app.openapi_schema is None:
        built = get_openapi(
            title=app.title,
            summary=app.summary,
            description=app.description,
            version=app.version,
            openapi_version="3.1.0",
            routes=app.routes,
            webhooks=app.webhooks.routes,
            tags=app.openapi_tags,
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        )
        _, added = models_json_schema(
            [
                (TelemetryWindow, "validation"),
                (ArrowWindow, "validation"),
                (WindowBatch, "validation"),
                (AskedScenarios, "validation"),
                (TraceWithScenarios, "validation"),
                (problems.Problem, "serialization"),
            ],
            ref_template="#/components/schemas/{model}",
        )
        schemas = built.setdefault("components", {}).setdefault("schemas", {})
        schemas |= added["$defs"]
        built["components"]["schemas"] = dict(sorted(schemas.items()))
        app.openapi_schema = built
    return app.openapi_schema
