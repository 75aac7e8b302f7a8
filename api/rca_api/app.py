"""The application factory: `uvicorn rca_api.app:create_app --factory`, or `rca serve`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import structlog
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from rca_api import diagnoses, health, logs, models, problems, training_runs, what_if
from rca_api.diagnoses import endpoints as diagnosis_endpoints
from rca_api.health import endpoints as health_endpoints
from rca_api.middleware import RequestContext
from rca_api.models import endpoints as model_endpoints
from rca_api.openapi import document
from rca_api.settings import Settings
from rca_api.state import State
from rca_api.training_runs import endpoints as training_run_endpoints
from rca_api.what_if import endpoints as what_if_endpoints

_log = structlog.stdlib.get_logger("rca_api")


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build the service.

    Parameters
    ----------
    settings : Settings, optional
        Read from ``RCA_*`` environment variables if not given.
    """
    settings = settings or Settings()
    logs.configure(settings.log_level)
    state = State.build(settings)
    app = FastAPI(
        title="straggler-rca",
        summary="Why a distributed training job is slow or has stopped: who, which cause, what to do.",
        version=version("straggler-rca"),
        lifespan=_lifespan,
        openapi_tags=[
            {"name": "diagnoses", "description": diagnoses.__doc__},
            {"name": "what-if", "description": what_if.__doc__},
            {"name": "training runs", "description": training_runs.__doc__},
            {"name": "models", "description": models.__doc__},
            {"name": "operations", "description": health.__doc__},
        ],
        redoc_url=None,
    )
    app.state.parts = state
    problems.install(app, settings.retry_after_seconds)
    app.add_middleware(RequestContext, metrics=state.metrics)
    app.include_router(diagnosis_endpoints.router)
    app.include_router(what_if_endpoints.router)
    app.include_router(training_run_endpoints.router)
    app.include_router(model_endpoints.router)
    app.include_router(health_endpoints.router)
    # FastAPI's documented way to serve a document of one's own.
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Warm the model before the first request, and finish what runs before the process ends."""
    state: State = app.state.parts
    if state.settings.migrate:
        await run_in_threadpool(state.database.upgrade)
    await asyncio.get_running_loop().run_in_executor(state.threads, state.engine.load)
    if state.engine.model is not None:
        state.metrics.bundle_loaded(state.engine.model)
        _log.info("ready", **state.engine.model.model_dump())
    else:
        _log.error("bundle cannot be used", reason=state.engine.failure)
    await run_in_threadpool(state.follower.resume)
    following = asyncio.create_task(state.follower.follow())
    yield
    following.cancel()
    await state.shadow.close()
    # Ends a poll that waits for the registry, too, so that nobody waits for it.
    await run_in_threadpool(state.registry.close)
    state.bell.close()
    await asyncio.gather(following, return_exceptions=True)
    state.threads.shutdown(wait=True, cancel_futures=True)
    state.database.close()
