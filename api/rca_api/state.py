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
from rca_api.engine import Engine, small_window
from rca_api.metrics import Metrics
from rca_api.models.current import BundleRef, CurrentModels
from rca_api.models.follower import Follower
from rca_api.models.registry import RegistryClient
from rca_api.models.shadow import Shadow
from rca_api.models.smoke import diagnose_here
from rca_api.settings import Settings
from rca_api.store.database import Database
from rca_api.training_runs.bell import Bell, QueueBell

OnDiagnosed = Callable[[Session, DiagnosisRow], None]


@dataclass(frozen=True)
class State:
    """Parts built once per app by `create_app`."""

    settings: Settings
    database: Database
    engine: Engine
    metrics: Metrics
    admission: Admission
    threads: ThreadPoolExecutor
    models: CurrentModels
    registry: RegistryClient
    follower: Follower
    shadow: Shadow
    bell: Bell
    #: Told of every finished diagnosis, in the transaction that stores it.
    on_diagnosed: tuple[OnDiagnosed, ...] = ()

    @classmethod
    def build(cls, settings: Settings) -> State:
        """Put the parts together; nothing is loaded yet."""
        database, metrics = Database(settings.database_url), Metrics()
        models = CurrentModels(BundleRef(settings.bundle))
        registry = RegistryClient(settings.registry_uri, settings.registry_timeout_seconds)
        return cls(
            settings=settings,
            database=database,
            engine=Engine(settings.bundle, settings.priors),
            metrics=metrics,
            admission=Admission(settings),
            threads=ThreadPoolExecutor(settings.threads, thread_name_prefix="diagnose"),
            models=models,
            registry=registry,
            follower=Follower(
                settings, models, registry, metrics, diagnose=diagnose_here, healthy=small_window
            ),
            shadow=Shadow(settings.shadow_share, models, database, metrics),
            bell=QueueBell(settings.queue_url),
        )

    @classmethod
    def of(cls, request: Request) -> State:
        """Get the state of the app that handles `request`."""
        app: FastAPI = request.app
        return cast("State", app.state.parts)
