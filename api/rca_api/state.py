"""What the endpoints of one app share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from fastapi import FastAPI, Request
from sqlalchemy.orm import Session

from rca_api.admission import Admission
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.engine import Engine
from rca_api.metrics import Metrics
from rca_api.security.authority import Authority
from rca_api.settings import Settings
from rca_api.store.database import Database

OnDiagnosed = Callable[[Session, DiagnosisRow], None]


@dataclass(frozen=True)
class State:
    """Parts built once per app by `create_app`."""

    settings: Settings
    database: Database
    engine: Engine
    metrics: Metrics
    authority: Authority
    admission: Admission
    threads: ThreadPoolExecutor
    #: Told of every finished diagnosis, in the transaction that stores it.
    on_diagnosed: tuple[OnDiagnosed, ...] = ()

    @classmethod
    def build(cls, settings: Settings) -> State:
        """Put the parts together; nothing is loaded yet."""
        database = Database(settings.database_url)
        return cls(
            settings=settings,
            database=database,
            authority=Authority(settings, database),
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
