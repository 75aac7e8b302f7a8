"""What the endpoints of one app share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from fastapi import FastAPI, Request

from rca_api.admission import Admission
from rca_api.engine import Engine
from rca_api.metrics import Metrics
from rca_api.settings import Settings


@dataclass(frozen=True)
class State:
    """Parts built once per app by `create_app`."""

    settings: Settings
    engine: Engine
    metrics: Metrics
    admission: Admission
    threads: ThreadPoolExecutor

    @classmethod
    def build(cls, settings: Settings) -> State:
        """Put the parts together; nothing is loaded yet."""
        return cls(
            settings=settings,
            engine=Engine(settings.bundle, settings.priors),
            metrics=Metrics(),
            admission=Admission(settings),
            threads=ThreadPoolExecutor(settings.threads, thread_name_prefix="diagnose"),
        )

    @classmethod
    def of(cls, request: Request) -> State:
        """Get the state of the app that handles `request`."""
        app: FastAPI = request.app
        return cast("State", app.state.parts)
