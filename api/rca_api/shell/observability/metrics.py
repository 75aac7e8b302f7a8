"""Prometheus metrics of one app, in its own registry so that two apps do not collide.

Every label has few values, all known beforehand. Jobs, nodes and callers are never labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from rca.diagnosis.result import AbstentionCode
from rca.features import WINDOW_FEATURES
from rca_api.shell.observability import tracing
from rca_api.shell.observability.drift import SIGNALS, AnswerDrift
from rca_api.shell.observability.tracing import Timed, Watch

if TYPE_CHECKING:
    from rca_api.diagnoses.work import DiagnosisAnswer

EXPOSITION_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STAGES = ("receive", "queue", "decompress", "decode", "diagnose", "keep", "render", "commit")
#: Tables whose rows are counted by state: name of the table -> states that are counted.
ROW_STATES = {
    "diagnoses": ("queued", "running"),
    "webhook_deliveries": ("pending", "dead"),
    "training_runs": ("queued", "running", "succeeded", "failed", "cancelled"),
}
_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUEUE_BUCKETS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 6 * 3600.0)
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_OTHER_LABEL = "other"


class Metrics:
    """Counters and histograms of the service, named ``rca_*``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # Memory, processor time and open files of this process. The pool has its own gauges.
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._count_requests()
        self._count_diagnoses()
        self._count_pool()
        self._count_store()
        self._count_incidents()
        self._count_models()
        self.drift = AnswerDrift(self.registry)

    def _count_requests(self) -> None:
        self.requests = self._counter(
            "rca_http_requests", "HTTP requests answered.", ("method", "route", "status")
        )
        self.request_seconds = Histogram(
            "rca_http_request_seconds",
            "Time from the first byte of a request to the last byte of its answer.",
            ("method", "route", "status"),
            buckets=_SECONDS_BUCKETS,
            registry=self.registry,
        )
        self.problems = self._counter("rca_problems", "Error answers by problem code.", ("code",))
        self.in_progress = self._gauge(
            "rca_diagnoses_in_progress", "Windows that are being received, wait or are being diagnosed."
        )
        self.shed = self._counter(
            "rca_shed_requests",
            "Requests refused at a limit: of requests, bytes, bodies being received, or queued diagnoses.",
            ("limit",),
            ("requests", "bytes", "receiving", "queued"),
        )

    def _count_diagnoses(self) -> None:
        self.stage_seconds = Histogram(
            "rca_diagnosis_stage_seconds",
            "Time spent in each stage of a diagnosis.",
            ("stage",),
            buckets=_SECONDS_BUCKETS,
            registry=self.registry,
        )
        # Labelled series exist from the start, so that a rate() over the first minute is not empty.
        for stage in STAGES:
            self.stage_seconds.labels(stage)
        self.queued_seconds = Histogram(
            "rca_queued_diagnosis_seconds",
            "Time from the acknowledgement of a queued diagnosis to its end, including the wait.",
            buckets=_QUEUE_BUCKETS,
            registry=self.registry,
        )
        self.diagnoses = self._counter(
            "rca_diagnoses", "Diagnoses by failure mode.", ("failure_mode", "abstained")
        )
        self.causes = self._counter(
            "rca_diagnosed_causes", "Causes listed in diagnoses, by catalogue id.", ("cause",)
        )
        self.abstentions = self._counter(
            "rca_abstentions",
            "Diagnoses without a verdict, by the reason's code.",
            ("reason",),
            get_args(AbstentionCode),
        )
        self.out_of_distribution = self._counter(
            "rca_out_of_distribution_windows", "Windows unlike those in the training data of the model."
        )
        self.features_outside = self._counter(
            "rca_features_outside",
            "Windows in which a feature is outside its range in the training data.",
            ("feature",),
            WINDOW_FEATURES,
        )
        self.missing_signals = self._counter(
            "rca_missing_signals",
            "Diagnoses that lacked a phase or the metrics of a resource.",
            ("signal",),
            SIGNALS,
        )

    def _count_pool(self) -> None:
        self.pool_renewals = self._counter(
            "rca_pool_renewals",
            "Processes of the pool that were replaced, by reason.",
            ("reason",),
            ("died", "lost", "deadline", "unusable", "worn"),
        )
        self.pool_retries = self._counter(
            "rca_pool_retries", "Tasks repeated in another process because the first one ended."
        )
        self.pool_given_up = self._counter(
            "rca_pool_given_up",
            "Tasks that were given up because processes ended: two during the task, or five before it.",
            ("reason",),
            ("died", "lost"),
        )
        self.deadlines = self._counter(
            "rca_deadlines_exceeded",
            "Tasks that exceeded their deadline, while waiting or while being worked on.",
            ("while",),
            ("waiting", "working"),
        )

    def _count_store(self) -> None:
        self.database_failures = self._counter(
            "rca_database_failures", "Transactions that failed because the database was not available."
        )
        self.windows_stored = self._gauge("rca_stored_windows", "Windows in the window store.")
        self.window_bytes = self._gauge("rca_window_store_bytes", "Size of the window store, compressed.")
        self.rows = {
            table: self._gauge(f"rca_{table}_rows", f"Rows of the table {table} by state.", ("state",))
            for table in ROW_STATES
        }
        self.training_heartbeat_age = self._gauge(
            "rca_training_run_heartbeat_age_seconds",
            "Time since the last heartbeat of the running training run; 0 if none runs.",
        )

    def _count_incidents(self) -> None:
        self.incident_events = self._counter(
            "rca_incident_events",
            "Events of incidents, by kind.",
            ("kind",),
            (
                "opened",
                "suspected",
                "confirmed",
                "reopened",
                "cause_changed",
                "place_changed",
                "cause_uncertain",
                "mute_ended",
                "resolved",
            ),
        )
        self.webhook_attempts = self._counter(
            "rca_webhook_attempts",
            "Attempts to send a webhook, by outcome.",
            ("outcome",),
            ("delivered", "failed", "dead", "lost"),
        )

    def _count_models(self) -> None:
        self.model_swaps = self._counter(
            "rca_model_swaps", "Times that another model became the one that answers."
        )
        self.models_rejected = self._counter(
            "rca_models_rejected", "Models of the registry that were rejected as broken."
        )
        self.model_trials = self._counter(
            "rca_model_trials",
            "Trials of models of the registry, by outcome.",
            ("outcome",),
            ("passed", "rejected", "unfinished", "postponed"),
        )
        self.registry_failures = self._counter(
            "rca_registry_failures", "Times that the model registry could not be followed."
        )
        self.shadow = self._counter(
            "rca_shadow_comparisons",
            "Windows for the challenger: agreed or disagreed with the champion, failed, or dropped.",
            ("outcome",),
            ("agreed", "disagreed", "failed", "dropped"),
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage, whether it succeeds or not."""
        watch = Watch()
        try:
            yield
        finally:
            self.staged(name, watch.read())

    def staged(self, name: str, timed: Timed) -> None:
        """Count a stage that has been timed already."""
        self.stage_seconds.labels(name).observe(timed.seconds)
        tracing.note(name, timed)

    def request_done(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request under its route template, not its path."""
        # Times of an answer, a 202 and a refusal are not comparable.
        labels = (method if method in _METHODS else _OTHER_LABEL, route, str(status))
        self.requests.labels(*labels).inc()
        self.request_seconds.labels(*labels).observe(seconds)

    def diagnosed(self, answer: DiagnosisAnswer) -> None:
        """Count one diagnosis: its verdict, and how usual window and answer are for its model."""
        self.diagnoses.labels(answer.failure_mode, str(answer.abstained).lower()).inc()
        for cause in answer.causes:
            self.causes.labels(cause).inc()
        facts = answer.facts
        if facts.abstention is not None:
            self.abstentions.labels(facts.abstention).inc()
        if facts.out_of_distribution:
            self.out_of_distribution.inc()
        for feature in facts.features_outside:
            self.features_outside.labels(feature).inc()
        for signal in facts.missing_signals:
            self.missing_signals.labels(signal if signal in SIGNALS else _OTHER_LABEL).inc()
        self.drift.observe(facts.model.sha256, answer.failure_mode, facts.confidence, facts.usual)

    def exposition(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self.registry)

    def _counter(
        self, name: str, meaning: str, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()
    ) -> Counter:
        counter = Counter(name, meaning, labels, registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def _gauge(self, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, meaning, labels, registry=self.registry)
