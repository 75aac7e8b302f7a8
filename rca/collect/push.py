"""Sends what a rank collects to a service while it trains: `POST /v1/jobs/{job_id}/telemetry`.

A thread of its own sends rows every half second, and at once when steps become longer. What the service does
not take waits in files of a bounded spool, which the next process of the rank sends as well. Training never
waits for it.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import numpy as np

from rca.collect.counters import SERIES
from rca.collect.faults import Faults
from rca.collect.fragments import fragment
from rca.collect.identity import Identity
from rca.collect.segments import Array
from rca.collect.timers import COLUMNS

#: Seconds between two requests of a rank.
PUSH_SECONDS: Final = 0.5
#: A change is sent at once, and what follows in shorter intervals, seconds.
URGENT_SECONDS: Final = 0.1
URGENT_FOR_SECONDS: Final = 3.0
#: All ranks of a job send so many requests per second at most, a change or not.
MAX_REQUESTS_PER_SECOND: Final = 50
#: Steps became longer: each of the last ones exceeds the median of those before by this share.
LAST_STEPS: Final = 4
STEPS_BEFORE: Final = 64
LONGER: Final = 0.1
#: Time limit of a request, and longest pause after failures, seconds.
TIMEOUT_SECONDS: Final = 5.0
MAX_PAUSE_SECONDS: Final = 30.0
#: An answer has no more.
MAX_ANSWER_BYTES: Final = 65536
#: Rows that are held between two requests; the spool holds more.
MAX_HELD_ROWS: Final = 8192
#: Statuses by which the service refuses a request for good. After others it may take it later: a proxy, a key
#: that is renewed, or the service's restart may be the reason.
_REFUSED: Final = frozenset({400, 409, 413, 415, 422})
#: A request that fails within the service so often is given up, because it blocks all later ones.
MAX_SERVER_ERRORS: Final = 5
_STEP_SECONDS = COLUMNS.index("step_seconds")
_COMMUNICATION = [COLUMNS.index(f"communication{name}_seconds") for name in ("", "_wait", "_transfer")]


@dataclass(frozen=True)
class PushSettings:
    """Where to send, and how much to keep while the service is away.

    Attributes
    ----------
    url : str
        Address of the service, such as ``http://rca:8080``; a path prefix is kept.
    api_key : str or None
    spool : Path or None
        Folder of the spool; one in the user's cache without it.
    max_spool_bytes : int
    """

    url: str
    api_key: str | None = None
    spool: Path | None = None
    max_spool_bytes: int = 16 * 1024**2

    @classmethod
    def checked(cls, url: str, api_key: str | None, spool: Path | None, max_bytes: int) -> PushSettings:
        """Settings with an address that can be used.

        Raises
        ------
        ValueError
            If it cannot.
        """
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.port == 0
            or "@" in parts.netloc
        ):
            raise ValueError("the address of the service is not http://HOST or https://HOST")
        key = (api_key or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise ValueError("RCA_API_KEY has characters that no key has")
        return cls(url.rstrip("/"), key or None, spool, max_bytes)


@dataclass(frozen=True)
class _Target:
    """Where the requests of one rank go, and the folder of those that wait."""

    identity: Identity
    path: str
    headers: Mapping[str, str]
    spool: Path

    @classmethod
    def of(cls, settings: PushSettings, identity: Identity, job_id: str) -> _Target:
        headers = {"Content-Type": "application/json"}
        if settings.api_key:
            headers["Authorization"] = f"Bearer {settings.api_key}"
        path = f"{urlsplit(settings.url).path}/v1/jobs/{quote(job_id, safe='')}"
        base = settings.spool or _cache() / "straggler-rca" / "spool"
        # A restart of the rank on this machine finds it again.
        name = sha256(f"{settings.url} {job_id}".encode()).hexdigest()[:16]
        return cls(identity, path, headers, base / f"{name}-rank-{identity.rank:05}")

    def held(self) -> list[Path]:
        """The fragments of the spool, the oldest first."""
        return sorted(self.spool.glob("*.json"))


class Pusher:
    """Sends rows, samples and events of one rank, from `start` to `end`.

    Parameters
    ----------
    header : mapping
        More keys of the job, such as `parallelism`.
    """

    def __init__(self, settings: PushSettings, header: Mapping[str, Any], faults: Faults) -> None:
        self._settings, self._header, self._faults = settings, header, faults
        self._target: _Target | None = None
        #: Whether the spool may hold something.
        self._may_wait = True
        self._rows: deque[Array] = deque()
        self._samples: deque[Array] = deque(maxlen=240)
        self._events: deque[dict[str, Any]] = deque(maxlen=200)
        self._recent: deque[tuple[float, float]] = deque(maxlen=STEPS_BEFORE)
        self._opened: Array | None = None
        self._opened_key = np.nan, 0
        self._urgent_until = -np.inf
        self._changed = False
        self._woken, self._ended = threading.Event(), threading.Event()
        self._is_over = False
        self._link: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        #: What is being sent and in no file.
        self._flying: bytes | None = None
        self._server_errors = 0

    def start(self, identity: Identity) -> None:
        """Begin to send, once; not without the name of the job."""
        if self._target is not None:
            return
        if identity.job_id is None:
            self._faults.warn(
                "push", "nothing is sent to the service: set RCA_COLLECT_JOB_ID, the same for all ranks"
            )
        else:
            self._target = _Target.of(self._settings, identity, identity.job_id)
            self._thread = threading.Thread(
                target=self._run, args=(self._target,), name="rca-push", daemon=True
            )
            self._thread.start()

    def add(self, rows: Array, events: Sequence[dict[str, Any]], opened: Array | None) -> None:
        """Take what is new; a change of the step time is sent at once.

        Parameters
        ----------
        rows : ndarray of shape (n_steps, n_columns)
            Finished steps, as `StepTimer.take` gives them.
        opened : ndarray of shape (n_columns,), or None
            The step in progress, if it is old. It is sent again when another phase has ended in it.
        """
        with self._lock:
            self._rows.append(rows)
            while sum(map(len, self._rows)) > MAX_HELD_ROWS:
                self._rows.popleft()
                self._faults.warn("rows", "rows were given up, because sending is slower than training")
            self._events.extend(events)
            if opened is not None:
                key = opened[0], int(np.isfinite(opened).sum())
                self._opened = opened if key != self._opened_key else self._opened
                self._opened_key = key
        if self._longer(rows) or events:
            self._urgent_until = time.monotonic() + URGENT_FOR_SECONDS
            self._woken.set()

    def add_sample(self, sample: Array) -> None:
        """Take a sample of the counters, shape (1 + n_series,)."""
        with self._lock:
            self._samples.append(sample[None])

    def end(self, *, over: bool, seconds: float) -> None:
        """Send what is left, for so many seconds at most; the rest stays in the spool.

        Parameters
        ----------
        over : bool
            Rank 0 also ends the job on the service, so that its silence is no stop.
        """
        self._is_over = over
        self._ended.set()
        self._woken.set()
        if self._thread is None or self._target is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            # The service hangs. What arrives twice counts once.
            self._keep(self._target, self._flying)
            self._keep(self._target, self._fragment(self._target.identity))

    def _longer(self, rows: Array) -> bool:
        """Whether the last steps, or the rank's own work in them, have become longer than those before."""
        if not len(rows):
            return False
        step = rows[:, _STEP_SECONDS]
        own = step - np.nansum(rows[:, _COMMUNICATION], axis=1)
        self._recent.extend(zip(step.tolist(), own.tolist(), strict=True))
        changed = len(self._recent) >= 4 * LAST_STEPS and any(
            min(series[-LAST_STEPS:]) > (1.0 + LONGER) * sorted(series)[len(series) // 2]
            for series in zip(*self._recent, strict=True)
        )
        new, self._changed = changed and not self._changed, changed
        return new

    def _run(self, target: _Target) -> None:
        failed = 0
        while True:
            ended = self._ended.is_set()
            try:
                failed = 0 if self._send_all(target, ended=ended) else failed + 1
            except Exception as error:  # Training must not notice.
                self._faults.add("sending to the service", error)
                failed += 1
            if ended:
                if self._link is not None:
                    self._link.close()
                return
            # A change does not shorten the pause after a failure.
            if failed:
                self._ended.wait(min(PUSH_SECONDS * 2.0**failed, MAX_PAUSE_SECONDS))
            else:
                self._woken.wait(self._pause(target.identity.world_size))
            self._woken.clear()

    def _pause(self, world_size: int) -> float:
        wanted = URGENT_SECONDS if time.monotonic() < self._urgent_until else PUSH_SECONDS
        return max(wanted, world_size / MAX_REQUESTS_PER_SECOND)

    def _send_all(self, target: _Target, *, ended: bool) -> bool:
        """Send the spool, the oldest first, and then what is new; whether the service took all."""
        self._flying = self._fragment(target.identity)
        try:
            took = self._send_held(target) and (
                self._flying is None or self._taken(target, "telemetry", self._flying)
            )
        except BaseException:
            self._keep(target, self._flying)
            raise
        if not took:
            self._keep(target, self._flying)
        self._flying = None
        over = took and ended and self._is_over and target.identity.rank == 0
        return took and (not over or self._taken(target, "end", b""))

    def _send_held(self, target: _Target) -> bool:
        """Send the spool; whether the service took all of it."""
        for path in target.held() if self._may_wait else ():
            try:
                body = path.read_bytes()
            except FileNotFoundError:
                # Another process of this rank has sent it.
                continue
            if not self._taken(target, "telemetry", body):
                return False
            path.unlink(missing_ok=True)
        self._may_wait = False
        return True

    def _fragment(self, identity: Identity) -> bytes | None:
        """What was collected since the last one, as the JSON of a window; None without anything."""
        with self._lock:
            rows = np.concatenate([*self._rows, np.empty((0, len(COLUMNS)))])
            samples = np.concatenate([*self._samples, np.empty((0, 1 + len(SERIES)))])
            events = list(self._events)
            opened, self._opened = self._opened, None
            if opened is not None and opened[0] not in rows[:, 0]:
                rows = np.vstack([rows, opened])
            for held in (self._rows, self._samples, self._events):
                held.clear()
        if not (len(rows) or len(samples) or events):
            return None
        return json.dumps(fragment(identity, self._header, rows, samples, events)).encode()

    def _taken(self, target: _Target, what: str, body: bytes) -> bool:
        """Whether the service took a request, or refused it for good."""
        try:
            if self._link is None:
                self._link = _connection(self._settings.url)
            self._link.request("POST", f"{target.path}/{what}", body, target.headers)
            answer = self._link.getresponse()
            content = answer.read(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException):
            if self._link is not None:
                self._link.close()
            self._link = None
            self._faults.warn("service", f"the service is away, and telemetry waits in {target.spool}")
            return False
        if answer.will_close or len(content) == MAX_ANSWER_BYTES:
            self._link.close()
        if 200 <= answer.status < 300:
            self._server_errors = 0
            return True
        why = f"the service refuses telemetry: HTTP {answer.status}, {_detail(content)}"
        self._server_errors = self._server_errors + 1 if answer.status == 500 else 0
        if answer.status in _REFUSED or self._server_errors >= MAX_SERVER_ERRORS:
            self._server_errors = 0
            self._faults.warn("refused", f"{why}; it is given up")
            return True
        self._faults.warn(f"status {answer.status}", f"{why}; it waits in {target.spool}")
        return False

    def _keep(self, target: _Target, body: bytes | None) -> None:
        """Keep a fragment in a file of the spool; the oldest ones go beyond the limit."""
        if body is None:
            return
        self._may_wait = True
        path = target.spool / f"{time.time_ns():020}-{os.getpid()}.json"
        hidden = path.with_suffix(".tmp")
        try:
            target.spool.mkdir(parents=True, exist_ok=True, mode=0o700)
            hidden.write_bytes(body)
            hidden.rename(path)
        except OSError as error:
            with suppress(OSError):
                hidden.unlink()
            self._faults.warn("keep", f"telemetry is given up: {target.spool} takes none: {error.strerror}")
            return
        held = target.held()
        total = sum(each.stat().st_size for each in held)
        for each in held:
            if total <= self._settings.max_spool_bytes:
                break
            total -= each.stat().st_size
            each.unlink(missing_ok=True)
            self._faults.warn("spool", "the spool is full: the oldest telemetry is given up")


def _cache() -> Path:
    """The user's cache; a folder for temporary files where the user has no home."""
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"uid-{os.getuid()}"


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, parts.port, timeout=TIMEOUT_SECONDS, context=context)
    return http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_SECONDS)


def _detail(content: bytes) -> str:
    try:
        return str(json.loads(content)["detail"])[:300]
    except (ValueError, KeyError, TypeError):
        return "without a reason"
