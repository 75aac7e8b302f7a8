"""The parts of one app, which its endpoints share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import cast

from fastapi import FastAPI, Request

from rca.recovery.site import Site
from rca.runbook.procedures import Library
from rca_api.actions.observation import observe_actions
from rca_api.diagnoses.dispatcher import Dispatcher
from rca_api.diagnoses.history_cache import HistoryCache
from rca_api.diagnoses.journal import Journal, OnDiagnosed
from rca_api.diagnoses.keys import Keys
from rca_api.diagnoses.repository import newest_windows
from rca_api.feedback.repository import has_feedback
from rca_api.hooks.sources import Sources
from rca_api.incidents.announce import Announcer
from rca_api.incidents.service import IncidentTracker
from rca_api.incidents.state_machine import Hysteresis
from rca_api.incidents.sweep import Sweeper
from rca_api.jobs.repository import has_segment
from rca_api.jobs.watcher import Watcher
from rca_api.models.bundle_cache import KEEP_SECONDS, BundleCache
from rca_api.models.bundle_trial import BundleTrial
from rca_api.models.current import CurrentModels
from rca_api.models.follower import Follower
from rca_api.models.registry import RegistryClient
from rca_api.models.shadow import Shadow
from rca_api.nodes.service import Exposures
from rca_api.shell.observability.gauges import LiveGauges
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.body import Spool
from rca_api.shell.processes.bundles import BundleRef, small_window
from rca_api.shell.processes.pool import ComputePool
from rca_api.shell.processes.process import Setup
from rca_api.shell.requests.admission import Admission
from rca_api.shell.security.authority import Authority
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.database import Database
from rca_api.shell.store.old_rows import Ages, OldRows
from rca_api.shell.store.schema_check import SchemaCheck
from rca_api.shell.store.waits import Listening
from rca_api.shell.store.window_store import WindowStore
from rca_api.stored_windows.retention import Retention
from rca_api.webhooks.addresses import Policy
from rca_api.webhooks.delivery import Sender
from rca_api.webhooks.dispatcher import Retries, WebhookDispatcher

#: Shortest time for a bundle to load and to answer one window: the machine may be busy.
_TRIAL_SECONDS = 30.0


@dataclass(frozen=True)
class State:
    """Parts built once per app by `create_app`."""

    settings: Settings
    site: Site
    runbooks: Library
    sources: Sources
    #: Each window of a hook takes a process while its source answers; the others stay free for callers.
    hook_slots: asyncio.Semaphore
    database: Database
    schema_check: SchemaCheck
    metrics: Metrics
    authority: Authority
    admission: Admission
    models: CurrentModels
    memory: HistoryCache
    pool: ComputePool
    spool: Spool
    windows: WindowStore
    journal: Journal
    keys: Keys
    dispatcher: Dispatcher
    watcher: Watcher
    listening: Listening
    retention: Retention
    old_rows: OldRows
    webhook_policy: Policy
    webhook_dispatcher: WebhookDispatcher
    incidents: IncidentTracker
    sweeper: Sweeper
    registry: RegistryClient
    trial: BundleTrial
    follower: Follower
    shadow: Shadow
    #: Called with every finished diagnosis, in the transaction that stores it.
    on_diagnosed: tuple[OnDiagnosed, ...]

    @classmethod
    def build(cls, settings: Settings) -> State:
        """Build the parts; nothing is loaded yet."""
        metrics = Metrics()
        database = Database(
            settings.database_url, metrics.database_failures.inc, settings.database_timeout_seconds
        )
        models = CurrentModels(BundleRef(settings.bundle))
        setup = partial(_setup, settings, models)
        pool = ComputePool(setup, settings.processes, settings.tasks_per_process, metrics)
        windows = WindowStore(settings.window_store_url)
        incidents = _incidents(settings, metrics)
        # Incidents first: nodes need to know whether the window is new, and actions need its observation.
        on_diagnosed: tuple[OnDiagnosed, ...] = (incidents, Exposures(), observe_actions)
        journal = Journal(database, metrics, on_diagnosed, windows.has, packed=settings.pack_documents)
        policy = Policy(
            http=settings.webhook_http, hosts=settings.webhook_hosts, private=settings.webhook_private
        )
        registry = RegistryClient(
            settings.registry_uri, settings.registry_timeout_seconds, settings.log_level
        )
        # A bundle that answers within the deadline of callers is not rejected as slow.
        trial = BundleTrial(setup, max(_TRIAL_SECONDS, settings.deadline_seconds), pool.loaded)
        admission = Admission(settings, pool.seconds_until_free, metrics)
        memory = HistoryCache(database, settings)
        shadow = Shadow(
            settings.shadow_share, settings.deadline_seconds, models, memory, pool, database, metrics
        )
        metrics.registry.register(LiveGauges(pool, models, admission, database))
        listening = Listening()
        dispatcher = Dispatcher(journal, pool, models, memory, settings, shadow.answered)
        return cls(
            settings=settings,
            site=Site() if settings.site is None else Site.read(settings.site),
            runbooks=Library.read(settings.runbooks),
            sources=Sources() if settings.sources is None else Sources.read(settings.sources),
            hook_slots=asyncio.Semaphore(max(1, settings.processes // 2)),
            database=database,
            schema_check=SchemaCheck(database),
            authority=Authority(settings, database),
            metrics=metrics,
            admission=admission,
            models=models,
            memory=memory,
            pool=pool,
            spool=Spool(settings.data_dir / "spool"),
            windows=windows,
            journal=journal,
            keys=Keys(
                database,
                kept=timedelta(hours=settings.idempotency_hours),
                held=timedelta(seconds=settings.deadline_seconds + settings.lease_seconds),
            ),
            dispatcher=dispatcher,
            watcher=Watcher(database, pool, journal, dispatcher, settings, listening),
            listening=listening,
            old_rows=OldRows(database, Ages.of(settings)),
            retention=Retention(database, windows, settings, (has_feedback(), has_segment())),
            webhook_policy=policy,
            webhook_dispatcher=_webhook_dispatcher(settings, database, metrics, policy),
            incidents=incidents,
            sweeper=Sweeper(database, incidents, settings.incident_silence_seconds, listening),
            on_diagnosed=on_diagnosed,
            registry=registry,
            trial=trial,
            follower=Follower(
                settings,
                models,
                registry,
                metrics,
                cache=_bundle_cache(settings),
                trial=trial,
                healthy=small_window,
                recent=partial(newest_windows, database),
            ),
            shadow=shadow,
        )

    @classmethod
    def of(cls, request: Request) -> State:
        """Get the state of the app that handles `request`."""
        app: FastAPI = request.app
        return cast("State", app.state.parts)


def _setup(settings: Settings, models: CurrentModels) -> Setup:
    return Setup(
        models.champion,
        settings.priors,
        settings.window_store_url,
        settings.log_level,
        int(settings.max_window_memory_bytes),
        settings.site,
    )


def _bundle_cache(settings: Settings) -> BundleCache:
    # Another replica touches the bundles it uses at each poll.
    return BundleCache(settings.data_dir / "models", max(KEEP_SECONDS, 4 * settings.follow_seconds))


def _incidents(settings: Settings, metrics: Metrics) -> IncidentTracker:
    hysteresis = Hysteresis(
        opening_windows=settings.incident_opening_windows,
        opening_of=settings.incident_opening_of,
        sure_probability=settings.incident_sure_probability,
        reopen_seconds=settings.incident_reopen_seconds,
        healthy_windows=settings.incident_healthy_windows,
        changed_windows=settings.incident_changed_windows,
        uncertain_windows=settings.incident_uncertain_windows,
        silence_seconds=settings.incident_silence_seconds,
    )
    announcer = Announcer(
        metrics, settings.public_url, notify_suspected=settings.incident_suspected == "notify"
    )
    return IncidentTracker(hysteresis, announcer, skew_seconds=settings.incident_skew_seconds)


def _webhook_dispatcher(
    settings: Settings, database: Database, metrics: Metrics, policy: Policy
) -> WebhookDispatcher:
    return WebhookDispatcher(
        database,
        Sender(policy, settings.webhook_timeout_seconds),
        Retries(settings.webhook_attempts, settings.webhook_pause_seconds),
        metrics,
        threads=settings.webhook_threads,
    )
