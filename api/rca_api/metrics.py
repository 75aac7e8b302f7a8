"""Prometheus metrics of one app, in a registry of its own so that two apps never collide."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rca.diagnosis.result import ModelVersion

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STAGES = ("receive", "queue", "decompress", "decode", "diagnose", "keep", "render", "commit")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class Metrics:
    """Counters and histograms of the service, named ``rca_*``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "rca_http_requests",
            "HTTP requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "rca_http_request_seconds",
            "Time from the first byte of a request to the last of its answer.",
            ("route",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.problems = Counter(
            "rca_problems", "Error answers by problem code.", ("code",), registry=self.registry
        )
        self.stage_seconds = Histogram(
            "rca_diagnosis_stage_seconds",
            "Time spent in each stage of answering a diagnosis.",
            ("stage",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.diagnoses = Counter(
            "rca_diagnoses",
            "Diagnoses by failure mode.",
            ("failure_mode", "abstained"),
            registry=self.registry,
        )
        self.causes = Counter(
            "rca_diagnosed_causes", "Causes named, by catalogue id.", ("cause",), registry=self.registry
        )
        self.in_progress = Gauge(
            "rca_diagnoses_in_progress",
            "Windows being received, waiting or being diagnosed.",
            registry=self.registry,
        )
        self.bundle = Gauge(
            "rca_bundle_info",
            "The model bundle in use; always 1.",
            ("name", "version", "sha256"),
            registry=self.registry,
        )
        self.incident_events = Counter(
            "rca_incident_events",
            "Incidents opened, changed and resolved.",
            ("kind",),
            registry=self.registry,
        )
        self.webhook_attempts = Counter(
            "rca_webhook_attempts",
            "Attempts to send a webhook, by what became of the delivery.",
            ("outcome",),
            registry=self.registry,
        )
        self.model_swaps = Counter(
            "rca_model_swaps", "Times another model began to answer.", registry=self.registry
        )
        self.models_rejected = Counter(
            "rca_models_rejected", "Models of the registry found to be broken.", registry=self.registry
        )
        self.registry_failures = Counter(
            "rca_registry_failures", "Times the model registry could not be followed.", registry=self.registry
        )
        self.shadow = Counter(
            "rca_shadow_comparisons",
            "Windows for the challenger: agreed or disagreed with the champion, failed, dropped when busy.",
            ("outcome",),
            registry=self.registry,
        )
        for outcome in ("agreed", "disagreed", "failed", "dropped"):
            self.shadow.labels(outcome)
        # Labelled series exist from the start, so that a rate() over the first minute is not empty.
        for stage in STAGES:
            self.stage_seconds.labels(stage)
        for kind in ("opened", "cause_changed", "resolved"):
            self.incident_events.labels(kind)
        for outcome in ("delivered", "failed", "dead", "lost"):
            self.webhook_attempts.labels(outcome)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage, whether it succeeds or not."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.stage_seconds.labels(name).observe(time.perf_counter() - began)

    def request_done(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request under its route template, never under its raw path."""
        self.requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
        self.request_seconds.labels(route).observe(seconds)

    def diagnosed(self, failure_mode: str, causes: Iterable[str], *, abstained: bool) -> None:
        """Count one diagnosis and the causes it names."""
        self.diagnoses.labels(failure_mode, str(abstained).lower()).inc()
        for cause in causes:
            self.causes.labels(cause).inc()

    def bundle_loaded(self, model: ModelVersion) -> None:
        """Name the bundle in use, and no other."""
        self.bundle.clear()
        self.bundle.labels(model.name, model.version, model.sha256).set(1)

    def exposition(self) -> bytes:
        """Write all series."""
        return generate_latest(self.registry)
