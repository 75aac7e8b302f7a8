"""The application factory; `rca serve` runs it.

Under a server of one's own: `uvicorn rca_api.app:create_app --factory --no-proxy-headers`, because uvicorn
believes forwarded addresses from this machine unless told otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from rca_api import (
    diagnoses,
    environment,
    feedback,
    health,
    incidents,
    logs,
    models,
    nodes,
    problems,
    tracing,
    training_runs,
    viewer,
    webhooks,
    what_if,
)
from rca_api.background import running
from rca_api.diagnoses import endpoints as diagnosis_endpoints
from rca_api.drain_body import Lingering
from rca_api.feedback import endpoints as feedback_endpoints
from rca_api.gauges import count_rows
from rca_api.health import endpoints as health_endpoints
from rca_api.incidents import endpoints as incident_endpoints
from rca_api.maintenance import tidy_up, upgrade_later, upgraded
from rca_api.middleware import RequestContext
from rca_api.models import endpoints as model_endpoints
from rca_api.nodes import endpoints as node_endpoints
from rca_api.openapi import document
from rca_api.security.headers import SecurityHeaders
from rca_api.settings import Settings
from rca_api.state import State
from rca_api.stored_windows import endpoints as window_endpoints
from rca_api.training_runs import endpoints as training_run_endpoints
from rca_api.webhooks import endpoints as webhook_endpoints
from rca_api.webhooks.documented import document_webhooks
from rca_api.what_if import endpoints as what_if_endpoints


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
        summary="Why a distributed training job is slow or has stopped: who, which cause, what to do.",
        version=version("straggler-rca"),
        lifespan=_lifespan,
        openapi_tags=[
            {"name": "diagnoses", "description": diagnoses.__doc__},
            {"name": "feedback", "description": feedback.__doc__},
            {"name": "incidents", "description": incidents.__doc__},
            {"name": "nodes", "description": nodes.__doc__},
            {"name": "webhooks", "description": webhooks.__doc__},
            {"name": "what-if", "description": what_if.__doc__},
            {"name": "training runs", "description": training_runs.__doc__},
            {"name": "models", "description": models.__doc__},
            {"name": "operations", "description": health.__doc__},
        ],
        docs_url=None,
        redoc_url=None,
    )
    app.state.parts = state
    problems.install(app, settings.retry_after_seconds)
    app.add_middleware(RequestContext, metrics=state.metrics)
    app.add_middleware(SecurityHeaders)
    # The last one added is the outermost.
    app.add_middleware(Lingering, at_most=int(settings.max_body_bytes))
    app.include_router(diagnosis_endpoints.router)
    app.include_router(window_endpoints.router)
    app.include_router(feedback_endpoints.router)
    app.include_router(incident_endpoints.router)
    app.include_router(node_endpoints.router)
    app.include_router(webhook_endpoints.router)
    document_webhooks(app)
    app.include_router(what_if_endpoints.router)
    app.include_router(training_run_endpoints.router)
    app.include_router(model_endpoints.router)
    app.include_router(health_endpoints.router)
    viewer.install(app)
    # FastAPI's documented way to serve a document of one's own.
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start what runs beside the requests, and end it in the opposite order."""
    state: State = app.state.parts
    # First, because getting warm takes longest; whoever asks meanwhile waits for it.
    state.pool.start()
    migrating: asyncio.Task[None] | None = None
    try:
        if state.settings.migrate and not await run_in_threadpool(upgraded, state):
            migrating = asyncio.create_task(upgrade_later(state))
        await run_in_threadpool(state.authority.prepare)
        await run_in_threadpool(state.spool.clean)
        await run_in_threadpool(state.follower.resume)
        state.dispatcher.start()
        beside = (
            state.webhook_dispatcher.run,
            state.sweeper.run,
            state.follower.follow,
            state.memory.nodes.follow,
            state.memory.windows.follow,
            partial(tidy_up, state),
            partial(count_rows, state.database, state.metrics),
        )
        async with running(*beside):
            yield
            # Ends a poll that waits for the registry or for a bundle, so that nobody waits for it.
            state.trial.close()
            await run_in_threadpool(state.registry.close)
        if migrating is not None:
            migrating.cancel()
        await state.dispatcher.stop()
    finally:
        await state.shadow.close()
        state.bell.close()
        await state.pool.close()
        state.database.close()
        await run_in_threadpool(tracing.stop)
