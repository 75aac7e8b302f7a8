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
from rca_api.incidents.announcing import Announcer
from rca_api.incidents.life import Hysteresis
from rca_api.incidents.service import Follower
from rca_api.incidents.sweeping import Sweeper
from rca_api.metrics import Metrics
from rca_api.nodes.service import Exposures
from rca_api.settings import Settings
from rca_api.store.database import Database
from rca_api.webhooks.addresses import Policy
from rca_api.webhooks.dispatcher import Dispatcher, Retries
from rca_api.webhooks.sending import Sender

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
    webhook_policy: Policy
    dispatcher: Dispatcher
    sweeper: Sweeper
    #: Told of every finished diagnosis, in the transaction that stores it.
    on_diagnosed: tuple[OnDiagnosed, ...] = ()

    @classmethod
    def build(cls, settings: Settings) -> State:
        """Put the parts together; nothing is loaded yet."""
        database, metrics = Database(settings.database_url), Metrics()
        follower = _follower(settings, metrics)
        policy = _policy(settings)
        return cls(
            settings=settings,
            database=database,
            engine=Engine(settings.bundle, settings.priors),
            metrics=metrics,
            admission=Admission(settings),
            threads=ThreadPoolExecutor(settings.threads, thread_name_prefix="diagnose"),
            webhook_policy=policy,
            dispatcher=_dispatcher(settings, database, metrics, policy),
            sweeper=Sweeper(
                database, follower, settings.incident_silence_seconds, settings.webhook_keep_days
            ),
            # Incidents first: nodes ask whether the window was new to them.
            on_diagnosed=(follower, Exposures()),
        )

    @classmethod
    def of(cls, request: Request) -> State:
        """Get the state of the app that handles `request`."""
        app: FastAPI = request.app
        return cast("State", app.state.parts)


def _follower(settings: Settings, metrics: Metrics) -> Follower:
    hysteresis = Hysteresis(
        settings.incident_healthy_windows,
        settings.incident_changed_windows,
        settings.incident_silence_seconds,
    )
    return Follower(hysteresis, Announcer(metrics))


def _policy(settings: Settings) -> Policy:
    return Policy(http=settings.webhook_http, hosts=settings.webhook_hosts, private=settings.webhook_private)


def _dispatcher(settings: Settings, database: Database, metrics: Metrics, policy: Policy) -> Dispatcher:
    return Dispatcher(
        database,
        Sender(policy, settings.webhook_timeout_seconds),
        Retries(settings.webhook_attempts, settings.webhook_pause_seconds),
        metrics,
        threads=settings.webhook_threads,
    )
