"""Settings of the service, read from ``RCA_*`` environment variables."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import (
    AliasChoices,
    BeforeValidator,
    ByteSize,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rca.files import data_folder
from rca.process import usable_cores
from rca_api.shell.settings import setting_forms

#: Most processes or threads of one kind.
_MAX_PROCESSES = 1024
#: Time to store and send an answer that is ready at the deadline.
_STORE_AND_SEND_SECONDS = 5


def _from_json(value: object) -> object:
    """Read a list from a variable, here rather than by a library whose errors do not name the variable."""
    try:
        return orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        raise ValueError("needs a list of texts as JSON") from None


JsonList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_from_json)]


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

    data_dir: Path = Field(default_factory=data_folder)
    """Folder of the SQLite database and of the windows, unless URLs name other places. Default:
    `straggler-rca` in `$XDG_DATA_HOME`, which is usually `~/.local/share`.
    """
    database_url: str = ""
    """SQLAlchemy URL of the database, such as `postgresql://...`. Default: `sqlite:///<data_dir>/rca.db`."""
    database_timeout_seconds: float = Field(10.0, gt=0)
    """Longest time of a transaction, waits for connections and locks included; longer ones get 503. A
    transaction of a request ends with its deadline at the latest."""
    pack_documents: bool = True
    """Store diagnoses compressed, at a fifth of their size. Switch it off while replicas of version 0.2.0 use
    the same database: they cannot read these."""
    window_store_url: str = ""
    """Folder or fsspec URL of the windows. Default: `<data_dir>/windows`."""
    migrate: bool = True
    """Upgrade the schema of the database at start. Switch it off if `rca db upgrade` runs before a rollout.
    """
    auth: Literal["keys", "off"] = "keys"
    """Whether callers need an API key or a token. With "off" the service answers on loopback only."""
    oidc_issuer: str = ""
    """URL of the token issuer, exactly as in its tokens. The service accepts these tokens as well as keys. ""
    for none."""
    oidc_audience: str = Field("straggler-rca", min_length=1)
    """Audience that the claim `aud` of a token must contain."""
    oidc_scope_claim: str = Field("scope", min_length=1)
    """Claim that holds the scopes: `scope`, or a list such as `roles` or `groups`."""
    oidc_client_id: str = ""
    """Client of the page `/ui` at the issuer, without a secret, with the redirect address `https://HOST/ui`.
    People then sign in with their account. "" for pasted keys and tokens only."""
    oidc_client_scope: str = Field("openid", min_length=1)
    """Scopes that the page requests from the issuer, such as `openid rca:read rca:diagnose rca:feedback`."""
    public_url: str = ""
    """Address under which people reach this service, such as `https://rca.example.org`. Messages then link to
    their incident."""
    rate_limit: str = "600/minute"
    """Most requests of one caller, such as `600/minute`; "" for no limit."""
    rate_limit_storage_url: str = "memory://"
    """Where requests are counted: in this process, or in a Redis that replicas share (`redis://`, `rediss://`
    or `unix://`, with the extra `redis`)."""
    trusted_proxies: JsonList = ()
    """Addresses or networks of reverse proxies, as JSON (`["10.0.3.4", "10.1.0.0/16"]`). `rca serve` trusts
    `X-Forwarded-For` and `X-Forwarded-Proto` of these only; other clients could forge them."""
    public_metrics: bool = True
    """Whether `/metrics` needs no key. It holds counts, no names. With `false` it needs the scope `read`.
    """
    bundle: Path | None = None
    """Folder of the model bundle. Default: the shipped bundle."""
    priors: Path | None = None
    """JSON file of how often each slow cause occurs on this cluster. Default: as in the training data."""
    site: Path | None = None
    """YAML file with the costs and limits of recovery, by which actions are planned. Default: no limits, a
    restart of 600 s, checkpoints every 1,800 s."""
    runbooks: Path | None = None
    """Folder with the site's own runbooks and values. Default: the shipped runbooks."""
    max_body_bytes: ByteSize = Field(ByteSize(256 * 1024**2), gt=0)
    """Largest body as sent, compressed or not."""
    max_decoded_bytes: ByteSize = Field(ByteSize(256 * 1024**2), gt=0)
    """Largest body after decompression, and largest content of its Arrow tables. A process takes up to three
    times as much."""
    max_json_bytes: ByteSize = Field(ByteSize(64 * 1024**2), gt=0)
    """Largest JSON body, before and after decompression. A process takes up to ten times as much; a body that
    would take more is refused with 413."""
    max_window_memory_bytes: ByteSize = Field(ByteSize(768 * 1024**2), gt=0)
    """Most memory that one window may take in a process that computes, beyond 256 MiB of an idle one. It is
    estimated first. Larger windows get 413, and an earlier window is not compared."""
    max_buffered_bytes: ByteSize = Field(ByteSize(1024**3), gt=0)
    """Most bytes of all bodies that are being received or wait. Further requests get 503."""
    processes: int = Field(default_factory=usable_cores, ge=1, le=_MAX_PROCESSES)
    """Processes that compute, so diagnoses at once (`rca serve --processes`). Default: one per core."""
    tasks_per_process: int = Field(5000, ge=0)
    """Tasks after which a process is replaced by a new one; 0 for never."""
    queue_limit: int = Field(32, ge=0)
    """Most requests that wait for a free process. Further ones get 503."""
    receive_limit: int = Field(256, ge=1)
    """Most bodies received at once from all callers together. Further ones get 503."""
    receive_limit_per_caller: int = Field(64, ge=1)
    """Most bodies received at once from one key. Further ones get 429. Without authentication there is no
    limit."""
    deadline_seconds: float = Field(60.0, gt=0)
    """Longest time to an answer once the request has arrived, waiting included. Callers may shorten it with
    `Prefer: wait=5`. For a queued diagnosis only the work counts.
    """
    max_queued: int = Field(10_000, ge=0)
    """Most queued diagnoses (`Prefer: respond-async`). Further ones get 503. One key may have three quarters
    of them, and gets 429 beyond."""
    max_jobs_per_caller: int = Field(1000, ge=1)
    """Most jobs of one key that run at once: not ended, with telemetry within the last hour. Ended ones count
    until the service has looked at their last rows. Telemetry of further ones gets 429. Without
    authentication there is no limit."""
    lease_seconds: float = Field(15.0, gt=0)
    """Time until another process takes over the queued diagnoses of a killed one."""
    idempotency_hours: float = Field(24.0, gt=0)
    """How long an `Idempotency-Key` is kept."""
    batch_limit: int = Field(64, ge=1)
    """Most windows in one batch."""
    diagnosis_days: float = Field(365.0, ge=0)
    """Age at which diagnoses are deleted; 0 for never. Those of a kept incident or with feedback stay."""
    incident_days: float = Field(365.0, ge=0)
    """Time after its resolution when an incident is deleted with its events; 0 for never."""
    feedback_days: float = Field(0.0, ge=0)
    """How long feedback keeps its diagnosis; 0 for ever, because both are training data. Withdrawn feedback
    keeps nothing."""
    training_run_days: float = Field(365.0, ge=0)
    """Age at which the records of ended training runs are deleted; 0 for never."""
    telemetry_hours: float = Field(24.0, gt=0)
    """Age at which the telemetry of jobs is deleted. Diagnosed windows stay."""
    data_shard_days: float = Field(30.0, ge=0)
    """Time after the last request of a worker when the shards of a data set are forgotten; 0 for never."""
    watch_seconds: float = Field(0.2, gt=0)
    """Shortest time between two looks at the telemetry of a job."""
    job_silence_seconds: float = Field(120.0, gt=0)
    """A job that sent telemetry is diagnosed after so long without any, or after 20 steps if that is longer.
    A job that was ended is not."""
    window_days: float = Field(90.0, gt=0)
    """Windows that are not used for so long are deleted, unless feedback refers to them."""
    max_window_store_bytes: ByteSize = Field(ByteSize(50 * 1024**3), gt=0)
    """Most bytes of the window store. Beyond it the least recently used windows are deleted."""
    retention_interval_seconds: float = Field(3600.0, gt=0)
    """Time between two searches for windows and rows to delete."""
    body_timeout_seconds: float = Field(60.0, gt=0)
    """Longest time for a caller to send its body."""
    retry_after_seconds: int = Field(1, ge=1)
    """Shortest `Retry-After` of a refused request. It is longer if the queue takes longer."""
    incident_sure_probability: float = Field(0.999, ge=0.5, le=1)
    """Windows of a slow job that may show one fault open an incident once they are together this certain: one
    of 0.999, or two of 0.97. A stopped job opens one at once."""
    incident_opening_windows: int = Field(3, ge=1, le=16)
    """So many faulty windows of one place open an incident, whatever their causes and their certainty; two at
    least where the cause is open."""
    incident_opening_of: int = Field(3, ge=1, le=16)
    """Of the last so many windows, undecided ones included, or as many as `incident_opening_windows`."""
    incident_suspected: Literal["notify", "quiet"] = "notify"
    """Whether webhooks get messages about suspected incidents: windows are certain of a fault, and the cause
    is open. With "quiet" they are listed only, until the cause is certain."""
    incident_reopen_seconds: float = Field(3600.0, ge=0)
    """A faulty window so soon after an incident was resolved reopens it; 0 for never."""
    incident_skew_seconds: float = Field(600.0, ge=0)
    """How far ahead of the service's clock a window may end. A window further ahead is ignored if the job has
    others."""
    incident_healthy_windows: int = Field(3, ge=1, le=32)
    """Healthy windows in a row that resolve an incident."""
    incident_changed_windows: int = Field(2, ge=1, le=32)
    """Confident diagnoses in a row with the same other cause or place that change those of an incident."""
    incident_uncertain_windows: int = Field(6, ge=2, le=32)
    """Confident diagnoses in a row, none with the cause and place of the incident, that make it uncertain."""
    incident_silence_seconds: float = Field(6 * 3600.0, gt=0)
    """Time without a window after which an open incident of the job is resolved."""
    incident_series: int = Field(100, ge=0, le=1000)
    """Open incidents that have series at `GET /v1/incident-series`; 0 for none."""
    sources: Path | None = None
    """YAML file of Prometheus servers, from which `POST /v1/hooks/alertmanager` reads the windows of jobs."""
    webhook_http: bool = False
    """Allow webhooks to http:// URLs."""
    webhook_hosts: JsonList = ()
    """The only hosts for webhooks, as JSON (`["hooks.example.org", ".corp.example"]`). They may have private
    addresses. Empty: all hosts with public addresses."""
    webhook_private: bool = False
    """Allow webhooks to private and loopback addresses of any host."""
    webhook_timeout_seconds: float = Field(10.0, gt=0)
    """Time limit of one attempt, from the name lookup to the status of the answer."""
    webhook_attempts: int = Field(8, ge=1)
    """Failed attempts after which a delivery is dead."""
    webhook_pause_seconds: float = Field(5.0, gt=0)
    """Pause before the second attempt. Each later pause is four times longer, up to six hours."""
    webhook_threads: int = Field(4, ge=1, le=_MAX_PROCESSES)
    """Most webhooks sent at once."""
    webhook_keep_days: float = Field(30.0, ge=0)
    """How long delivered webhooks are listed; 0 for ever."""
    webhook_dead_days: float = Field(90.0, ge=0)
    """How long webhooks that were given up are listed; 0 for ever."""
    node_lemon_prior: float = Field(0.01, gt=0, lt=1)
    """Share of lemons (nodes with a fault of their own) among all nodes, before any diagnosis."""
    node_priors: Literal["off", "on"] = "off"
    """Use the diagnoses of other jobs on the same nodes, and list known lemons in incidents."""
    earlier_windows: Literal["off", "on"] = "off"
    """Compare a window with the last healthy window of its job that ended before it. Only this shows what
    slows the whole job in every step."""
    tracking_uri: str = Field("", validation_alias=AliasChoices("RCA_TRACKING_URI", "MLFLOW_TRACKING_URI"))
    """MLflow store of models (also `MLFLOW_TRACKING_URI`). Default: `sqlite:///<data_dir>/mlflow.db`."""
    follow_seconds: float = Field(30.0, ge=0)
    """Time between two reads of the champion in the registry; 0 to always use `bundle`."""
    registry_timeout_seconds: float = Field(30.0, gt=0)
    """Longest time that a request waits for the registry."""
    shadow_share: float = Field(0.0, ge=0, le=1)
    """Share of windows that the challenger diagnoses as well, after the answer; 0 for none."""
    collections_dir: Path | None = None
    """Folder of labelled collections for training runs."""
    cache_dir: Path = Path()
    """Folder of computed features that training runs share. Default: `<data_dir>/examples`."""
    training_processes: int = Field(
        default_factory=lambda: max(1, (os.cpu_count() or 1) - 1), ge=1, le=_MAX_PROCESSES
    )
    """Processes of one training run. Default: one per core, less one."""
    dask_scheduler: str = ""
    """Dask scheduler whose workers train instead, such as `tcp://HOST:8786`. It must be as trusted as the
    worker, because results are pickles."""
    training_attempts: int = Field(3, ge=1)
    """Workers that may die during one run before it fails."""
    gate_windows: int = Field(2000, ge=20)
    """Frozen simulated windows on which a new version is compared with the champion."""
    auto_promote: bool = False
    """Promote a version that passes the gate. Otherwise a person promotes."""
    registry_patience_seconds: float = Field(900.0, ge=0)
    """How long a training run waits for an unavailable registry before it fails."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. `debug` adds probes and the tasks of each process."""
    tracing: Literal["off", "otlp"] = "off"
    """Whether to send spans to an OpenTelemetry collector over OTLP (needs the extra `tracing`). The standard
    `OTEL_*` variables set its address and the sampling.
    """

    @field_validator("bundle", "priors", "site", "runbooks", "sources", "collections_dir", mode="before")
    @classmethod
    def _is_given(cls, value: object) -> object:
        """An empty variable is no path, as one that `--print-config` shows for an unset path."""
        return None if value == "" else value

    @field_validator("*")
    @classmethod
    def _has_its_form(cls, value: object, info: ValidationInfo) -> object:
        """Refuse what no part of the service can use at start, not at the first request."""
        setting_forms.check(str(info.field_name), value)
        return value

    @field_validator("oidc_client_id")
    @classmethod
    def _has_its_issuer(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("oidc_issuer") == "":
            raise ValueError("needs RCA_OIDC_ISSUER, where this client is registered")
        return value

    @model_validator(mode="after")
    def _places(self) -> Settings:
        """Put what has no path of its own into the data folder."""
        folder = self.data_dir.expanduser().absolute()
        # The model is frozen after its construction, which this is part of.
        object.__setattr__(self, "data_dir", folder)
        object.__setattr__(self, "database_url", self.database_url or f"sqlite:///{folder / 'rca.db'}")
        object.__setattr__(self, "window_store_url", self.window_store_url or str(folder / "windows"))
        if self.cache_dir == Path():
            object.__setattr__(self, "cache_dir", folder / "examples")
        return self

    @property
    def drain_seconds(self) -> int:
        """Time for requests in progress to finish when the service ends, seconds."""
        return math.ceil(self.deadline_seconds) + _STORE_AND_SEND_SECONDS

    @property
    def registry_uri(self) -> str:
        """URI of the MLflow store, given or in the data folder."""
        return self.tracking_uri or f"sqlite:///{self.data_dir / 'mlflow.db'}"

    @property
    def has_registry(self) -> bool:
        """Whether an MLflow store is given, or exists in the data folder."""
        return bool(self.tracking_uri) or (self.data_dir / "mlflow.db").exists()
