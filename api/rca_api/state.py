"""What the endpoints of one app share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from fastapi import FastAPI, Request

from rca_api.admission import Admission
from rca_api.compute.body import Spool
from rca_api.compute.pool import ComputePool
from rca_api.compute.process import Setup
from rca_api.diagnoses.dispatcher import Dispatcher
from rca_api.diagnoses.journal import Journal, OnDiagnosed
from rca_api.diagnoses.keys import Keys
from rca_api.live import LiveGauges
from rca_api.metrics import Metrics
from rca_api.models.current import BundleRef, CurrentModels
from rca_api.security.authority import Authority
from rca_api.settings import Settings
from rca_api.store.database import Database
from rca_api.store.window_store import WindowStore
from rca_api.stored_windows.retention import Keeper, Retention

#: Told of every finished diagnosis, in the transaction that stores it; a line here per resource that follows.
ON_DIAGNOSED: tuple[OnDiagnosed, ...] = ()
#: Conditions on `WindowRow` under which retention leaves a window alone, whatever its age.
KEEPERS: tuple[Keeper, ...] = ()


@dataclass(frozen=True)
class State:
    """Parts built once per app by `create_app`."""

    settings: Settings
    database: Database
    metrics: Metrics
    authority: Authority
    admission: Admission
    models: CurrentModels
    pool: ComputePool
    spool: Spool
    windows: WindowStore
    journal: Journal
    keys: Keys
    dispatcher: Dispatcher
    retention: Retention

    @classmethod
    def build(cls, settings: Settings) -> State:
        """Put the parts together; nothing is loaded yet."""
        metrics = Metrics()
        database = Database(settings.database_url, metrics.database_failures.inc)
        models = CurrentModels(BundleRef(settings.bundle))
        pool = ComputePool(
            lambda: Setup(models.champion, settings.priors, settings.window_store_url, settings.log_level),
            settings.processes,
            settings.tasks_per_process,
            metrics,
        )
        windows = WindowStore(settings.window_store_url)
        journal = Journal(database, metrics, ON_DIAGNOSED)
        admission = Admission(settings, pool.seconds_until_free, metrics)
        metrics.registry.register(LiveGauges(pool, admission, database))
        return cls(
            settings=settings,
            database=database,
            authority=Authority(settings, database),
            metrics=metrics,
            admission=admission,
            models=models,
            pool=pool,
            spool=Spool(settings.data_dir / "spool"),
            windows=windows,
            journal=journal,
            keys=Keys(
                database,
                kept=timedelta(hours=settings.idempotency_hours),
                held=timedelta(seconds=settings.deadline_seconds + settings.lease_seconds),
            ),
            dispatcher=Dispatcher(journal, pool, models, settings),
            retention=Retention(database, windows, settings, KEEPERS),
        )

    @classmethod
    def of(cls, request: Request) -> State:
        """Get the state of the app that handles `request`."""
        app: FastAPI = request.app
        return cast("State", app.state.parts)
