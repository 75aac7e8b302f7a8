"""What an operator can set, from ``RCA_*`` environment variables."""

from __future__ import annotations

import ipaddress
import math
import os
import re
from pathlib import Path
from typing import Literal

import limits
from pydantic import AliasChoices, ByteSize, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from rca.commands.process import usable_cores

_DRIVERS = frozenset({"sqlite", "postgres", "postgresql", "postgresql+psycopg"})
_QUEUE = re.compile(r"(sqlite|rediss?|unix|postgres(ql)?)://")
#: An answer found at the last moment is still stored and sent.
_ANSWER_SECONDS = 5


def default_data_dir() -> Path:
    """Where a user's data belong: in ``$XDG_DATA_HOME``, mostly ``~/.local/share``."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "straggler-rca"


class Settings(BaseSettings):
    """Settings of one service process; sizes take units (``RCA_MAX_BODY_BYTES=64MiB``).

    The text below each is its description, in `rca serve --print-config` and `docs/reference/settings.md`.
    """

    model_config = SettingsConfigDict(
        env_prefix="RCA_",
        frozen=True,
        populate_by_name=True,
        use_attribute_docstrings=True,
        # Values may be passwords, and errors end up in logs.
        hide_input_in_errors=True,
    )

    data_dir: Path = Field(default_factory=default_data_dir)
    """Folder of what the service keeps: the SQLite database and the windows, unless URLs name other places;
    `straggler-rca` in `$XDG_DATA_HOME`, mostly `~/.local/share`, if not set.
    """
    database_url: str = ""
    """SQLAlchemy URL; `sqlite:///<data_dir>/rca.db` if not set (`RCA_DATABASE_URL=postgresql://...`)."""
    window_store_url: str = ""
    """Folder or fsspec URL of the windows; `<data_dir>/windows` if not set."""
    migrate: bool = True
    """Bring the database's schema up to date at start. Off where `rca db upgrade` does it before a rollout.
    """
    auth: Literal["keys", "off"] = "keys"
    """Whether callers have to show an API key or a token. "off" is for one's own machine: the service then
    answers on loopback only.
    """
    oidc_issuer: str = ""
    """Issuer whose bearer tokens are taken as well, as its URL stands in them; "" for none."""
    oidc_audience: str = "straggler-rca"
    """What the `aud` of such a token has to contain."""
    oidc_scope_claim: str = "scope"
    """Claim with the scopes: `scope` of an access token, or a list such as `roles` or `groups`."""
    rate_limit: str = "600/minute"
    """What one caller may ask, such as `600/minute`; "" for no limit."""
    rate_limit_storage_url: str = "memory://"
    """Where calls are counted: this process, or a Redis URL that replicas share."""
    trusted_proxies: tuple[str, ...] = ()
    """Reverse proxies, by address or network, as JSON (`["10.0.3.4", "10.1.0.0/16"]`), whose
    `X-Forwarded-For` and `X-Forwarded-Proto` `rca serve` believes; others could make them up."""
    public_metrics: bool = True
    """Whether `/metrics` is open. It holds counts, no names; off, it needs the scope `read`."""
    bundle: Path | None = None
    """Directory of the model bundle; the shipped one if not set."""
    priors: Path | None = None
    """JSON file of how often each slow cause occurs on this cluster; as in the training data if not set.
    """
    max_body_bytes: ByteSize = Field(ByteSize(256 * 1024**2), gt=0)
    """Largest body as sent, compressed or not."""
    max_decoded_bytes: ByteSize = Field(ByteSize(512 * 1024**2), gt=0)
    """Largest body after decompression."""
    max_json_bytes: ByteSize = Field(ByteSize(128 * 1024**2), gt=0)
    """Largest JSON document, in either form: parsed, one takes about eight times its size in memory."""
    max_buffered_bytes: ByteSize = Field(ByteSize(1024**3), gt=0)
    """Bodies being received or waiting, all requests together; beyond it callers are told to retry."""
    processes: int = Field(default_factory=usable_cores, ge=1)
    """Processes that compute, so diagnoses computed at once (`rca serve --processes`); one a core if not
    set.
    """
    tasks_per_process: int = Field(5000, ge=0)
    """After so many tasks a process is replaced by a fresh one; 0 for never."""
    queue_limit: int = Field(32, ge=0)
    """Requests that may wait beyond those computed; further ones get 503."""
    receive_limit: int = Field(256, ge=1)
    """Bodies received at once, by all callers together; further ones get 503."""
    receive_limit_per_caller: int = Field(64, ge=1)
    """Bodies of one key received at once; further ones get 429. Without authentication there is none."""
    deadline_seconds: float = Field(60.0, gt=0)
    """Longest an answer may take from the moment its request is there, waiting included; callers ask for
    less with `Prefer: wait=5`. Of a queued diagnosis the work alone counts.
    """
    max_queued: int = Field(10_000, ge=0)
    """Diagnoses that may be queued (`Prefer: respond-async`); further ones get 503."""
    lease_seconds: float = Field(15.0, gt=0)
    """How long a process that was killed keeps its queued diagnoses from others."""
    idempotency_hours: float = Field(24.0, gt=0)
    """How long an `Idempotency-Key` is remembered."""
    batch_limit: int = Field(64, ge=1)
    """Windows one batch may have."""
    window_days: float = Field(90.0, gt=0)
    """Windows not used for so long are deleted, unless feedback refers to them."""
    max_window_store_bytes: ByteSize = Field(ByteSize(50 * 1024**3), gt=0)
    """Beyond it the windows used longest ago are deleted."""
    retention_interval_seconds: float = Field(3600.0, gt=0)
    """How often the service looks for windows to delete."""
    body_timeout_seconds: float = Field(60.0, gt=0)
    """How long a caller may take to send its body."""
    retry_after_seconds: int = Field(1, ge=1)
    """Least a refused caller is told to wait; more where the queue takes longer."""
    incident_opening_windows: int = Field(2, ge=1, le=16)
    """So many sick windows among the last `incident_opening_of` confident ones open an incident of a slow
    job; one of a stopped job opens at once."""
    incident_opening_of: int = Field(3, ge=1, le=16)
    """Confident windows among which they are counted."""
    incident_sure_probability: float = Field(0.99, ge=0.5, le=1)
    """A single window that is fail-slow with this probability opens an incident, too."""
    incident_reopen_seconds: float = Field(3600.0, ge=0)
    """A sick window so soon after an incident was resolved opens the same one again; 0 for never."""
    incident_skew_seconds: float = Field(600.0, ge=0)
    """How far ahead of the service's clock a window may end; beyond it, it is left aside where the job has
    others."""
    incident_healthy_windows: int = Field(3, ge=1, le=32)
    """Healthy windows in a row that resolve an incident."""
    incident_changed_windows: int = Field(2, ge=1, le=32)
    """Confident diagnoses in a row of another cause or place that change those of an incident."""
    incident_uncertain_windows: int = Field(6, ge=2, le=32)
    """Confident diagnoses, none of the incident's cause and place, after which it calls itself uncertain."""
    incident_silence_seconds: float = Field(6 * 3600.0, gt=0)
    """Time without a window after which an open incident of a job is resolved."""
    webhook_http: bool = False
    """Webhooks may go to http:// URLs, too."""
    webhook_hosts: tuple[str, ...] = ()
    """The only hosts webhooks may go to, as JSON (`["hooks.example.org", ".corp.example"]`); they may
    have private addresses. Empty: all hosts with public addresses."""
    webhook_private: bool = False
    """Webhooks may go to private and loopback addresses of any host."""
    webhook_timeout_seconds: float = Field(10.0, gt=0)
    """For one attempt, from looking up the host to the status of the answer."""
    webhook_attempts: int = Field(8, ge=1)
    """After so many failures a delivery is dead."""
    webhook_pause_seconds: float = Field(5.0, gt=0)
    """Before the second attempt; later pauses grow fourfold, up to six hours."""
    webhook_threads: int = Field(4, ge=1)
    """Webhooks sent at once."""
    webhook_keep_days: float = Field(30.0, gt=0)
    """How long delivered ones are listed; dead ones stay."""
    node_lemon_prior: float = Field(0.01, gt=0, lt=1)
    """Share of lemons among all nodes, before anything is known of one."""
    node_priors: Literal["off", "on"] = "off"
    """Let the next diagnosis use what other jobs say of its nodes, and tell it in incidents."""
    earlier_windows: Literal["off", "on"] = "off"
    """Compare a window with the last healthy one of its job that was over by then: what slows a whole job
    from the first step to the last shows in no window alone."""
    tracking_uri: str = Field("", validation_alias=AliasChoices("RCA_TRACKING_URI", "MLFLOW_TRACKING_URI"))
    """MLflow store of models (also `MLFLOW_TRACKING_URI`); `sqlite:///<data_dir>/mlflow.db` if not
    set."""
    follow_seconds: float = Field(30.0, ge=0)
    """How often the registry is asked for its champion; 0 to keep to `bundle`."""
    registry_timeout_seconds: float = Field(30.0, gt=0)
    """How long a caller waits for the registry at most."""
    shadow_share: float = Field(0.0, ge=0, le=1)
    """Share of windows that the challenger diagnoses as well, after the answer; 0 for none."""
    queue_url: str = ""
    """Where the worker is woken: `sqlite:///`, `redis://` or `postgresql://`; if not set, a file in the
    data folder, or the PostgreSQL database."""
    collections_dir: Path | None = None
    """Folder of the labelled collections that training runs may name."""
    cache_dir: Path = Path()
    """Features that trainings share; `<data_dir>/examples` if not set."""
    training_processes: int = Field(default_factory=lambda: max(1, (os.cpu_count() or 1) - 1), ge=1)
    """Processes of a training."""
    training_attempts: int = Field(3, ge=1)
    """Workers that may die of one run before it counts as failed."""
    gate_windows: int = Field(2000, ge=20)
    """Frozen simulated windows that a new version is compared with the champion on."""
    auto_promote: bool = False
    """Promote what passes the gate; otherwise a person does."""
    registry_patience_seconds: float = Field(900.0, ge=0)
    """How long a training run waits for a registry that is away before it fails."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe lines that are logged; `debug` adds probes and what every process of the pool does."""
    tracing: Literal["off", "otlp"] = "off"
    """Whether spans go to an OpenTelemetry collector over OTLP (needs the extra `tracing`); where it is, and
    what is sampled, say the standard `OTEL_*` variables.
    """

    @field_validator("rate_limit")
    @classmethod
    def _is_a_rate(cls, value: str) -> str:
        """Refuse a rate nobody can count at start, not at the first request."""
        try:
            if value:
                limits.parse(value)
        except ValueError:
            raise ValueError("needs a rate such as 600/minute") from None
        return value

    @field_validator("database_url")
    @classmethod
    def _is_a_database(cls, value: str) -> str:
        try:
            known = not value or make_url(value).drivername in _DRIVERS
        except (ArgumentError, ValueError):
            known = False
        if not known:
            # Not chained: what SQLAlchemy says holds parts of the URL.
            raise ValueError(
                "needs a URL of SQLite (sqlite:///FILE) or PostgreSQL (postgresql://...)"
            ) from None
        return value

    @field_validator("queue_url")
    @classmethod
    def _is_a_queue(cls, value: str) -> str:
        if value and not _QUEUE.match(value):
            raise ValueError("needs a URL that begins with sqlite:///, redis:// or postgresql://")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse names and `*`: what is meant by them is not what would be trusted."""
        for each in value:
            ipaddress.ip_network(each)
        return value

    @model_validator(mode="after")
    def _places(self) -> Settings:
        """Put what has no place of its own into the data folder."""
        folder = self.data_dir.expanduser().absolute()
        # The model is frozen for its users; this is still its construction.
        object.__setattr__(self, "data_dir", folder)
        object.__setattr__(self, "database_url", self.database_url or f"sqlite:///{folder / 'rca.db'}")
        object.__setattr__(self, "window_store_url", self.window_store_url or str(folder / "windows"))
        object.__setattr__(self, "queue_url", self.queue_url or self._own_queue(folder))
        if self.cache_dir == Path():
            object.__setattr__(self, "cache_dir", folder / "examples")
        return self

    def _own_queue(self, folder: Path) -> str:
        if self.database_url.startswith("postgres"):
            return "postgresql://" + self.database_url.partition("://")[2]
        return f"sqlite:///{folder / 'queue.db'}"

    @property
    def drain_seconds(self) -> int:
        """How long requests that have begun are given when the service has to end."""
        return math.ceil(self.deadline_seconds) + _ANSWER_SECONDS

    @property
    def registry_uri(self) -> str:
        """The MLflow store, named or our own."""
        return self.tracking_uri or f"sqlite:///{self.data_dir / 'mlflow.db'}"

    @property
    def has_registry(self) -> bool:
        """Whether a store was named, or training runs have made one here."""
        return bool(self.tracking_uri) or (self.data_dir / "mlflow.db").exists()
