"""Follows the registry: a promoted version answers here after its download, verification and trial.

After any failure the champion stays in place:

- a broken bundle is not tried again until another trial is requested;
- a bundle whose trial could not be completed is tried again after a pause;
- a registry that is away is polled again at the next turn;
- after a restart the last champion is read from the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import structlog

from rca.errors import BundleError, RcaError
from rca.window.window import Window
from rca_api.models.bundle_cache import BundleCache
from rca_api.models.bundle_trial import Diagnose, TryLater, Unfinished, objection, verify
from rca_api.models.current import CurrentModels
from rca_api.models.registry import RegistryClient
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.settings.settings import Settings

_log = structlog.stdlib.get_logger("rca_api.models")
#: Trials in which a bundle takes too long or ends its process, until it is rejected.
MAX_UNFINISHED = 3
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 30.0, 600.0


@dataclass
class _Case:
    """A bundle without a complete trial, and the request for its trial."""

    request: str
    trials: int = 0
    unfinished: int = 0
    not_before: float = 0.0
    closed: bool = False


class RetryPolicy:
    """Counts trials by bundle; a new request for the same bundle starts from the beginning.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cases: dict[str, _Case] = {}

    def begin(self, sha256: str, request: str) -> bool:
        """Start with a request for a bundle; True if it is a new one, which resets all counts."""
        if sha256 in self._cases and self._cases[sha256].request == request:
            return False
        self._cases[sha256] = _Case(request)
        return True

    def allows(self, sha256: str) -> bool:
        """Whether the bundle may be tried now."""
        case = self._cases[sha256]
        return not case.closed and self._clock() >= case.not_before

    def postpone(self, sha256: str) -> None:
        """Allow another trial after a pause; each pause is twice as long as the one before."""
        case = self._cases[sha256]
        pause = min(_FIRST_PAUSE_SECONDS * 2**case.trials, _MAX_PAUSE_SECONDS)
        case.trials, case.not_before = case.trials + 1, self._clock() + pause

    def unfinished(self, sha256: str) -> bool:
        """Count a trial that the bundle did not complete; True at the limit."""
        self._cases[sha256].unfinished += 1
        return self._cases[sha256].unfinished >= MAX_UNFINISHED

    def forget(self, sha256: str) -> None:
        """Delete the counts of a bundle that has passed."""
        self._cases.pop(sha256, None)

    def close(self, sha256: str) -> None:
        """Allow no trial until another one is requested."""
        self._cases[sha256].closed = True


@dataclass(eq=False)
class Follower:
    """Keeps `CurrentModels` equal to the aliases of the registry.

    Attributes
    ----------
    trial : callable
        Context manager that gives a function for the trial of one bundle.
    healthy : callable
        Gives a small healthy window.
    recent : callable
        Gives some of the newest stored windows or their digests.
    """

    settings: Settings
    current: CurrentModels
    registry: RegistryClient
    metrics: Metrics
    _: KW_ONLY
    cache: BundleCache
    trial: Callable[[], AbstractContextManager[Diagnose]]
    healthy: Callable[[], Window]
    recent: Callable[[], Sequence[Window | str]] = tuple
    retries: RetryPolicy = field(default_factory=RetryPolicy)

    def resume(self) -> None:
        """Let the last champion that is not damaged answer, without the registry."""
        if not (self.settings.follow_seconds and self.settings.has_registry):
            return
        held = self.cache.stored_roles()
        champion, previous = held.get("champion"), held.get("previous")
        if champion is None:
            # Rolled back to the operator's bundle, or never followed.
            self.current.resume(self.current.own, previous)
        elif self._answers_again(champion):
            self.current.resume(champion, previous)
        elif previous is not None and self._answers_again(previous):
            self.current.resume(previous, None)

    def poll(self) -> None:
        """Poll the registry once and follow it; never raises."""
        if not self.settings.has_registry:
            return
        try:
            self._poll()
            self.registry.rest()
        except Exception as error:
            # The champion keeps answering, and the next poll comes.
            _log.exception("following the registry failed")
            self._failed(f"unexpected {type(error).__name__}: {error}")

    def _poll(self) -> None:
        try:
            held = self.registry.aliases()
        except RcaError as error:
            self._failed(error.message)
        else:
            self.current.registry_failed(None)
            try:
                self._follow_champion(held.get("champion"))
                if self.settings.shadow_share > 0:
                    self._follow_challenger(held.get("challenger"))
            except RcaError as error:
                self._failed(error.message)
        # Also without a registry: other replicas must see which bundles are used here.
        choice = self.current.choice
        self.cache.tidy((choice.champion, choice.previous, choice.challenger))

    def _failed(self, reason: str) -> None:
        self.metrics.registry_failures.inc()
        if self.current.choice.failure != reason:
            _log.warning("the registry cannot be followed", reason=reason)
        self.current.registry_failed(reason)

    def _follow_champion(self, wanted: dict[str, Any] | None) -> None:
        current = self.current.champion
        ref = self.current.own if wanted is None else self._usable(wanted)
        if ref is None or ref == current:
            return
        self.current.swap(ref)
        self.cache.store_roles({"champion": ref, "previous": self.current.previous})
        self.metrics.model_swaps.inc()
        _log.info("another model answers now", version=ref.version, sha256=ref.sha256, before=current.sha256)

    def _follow_challenger(self, wanted: dict[str, Any] | None) -> None:
        ref = None if wanted is None else self._usable(wanted)
        if ref != self.current.challenger:
            self.current.challenge(ref)
            _log.info("the challenger in shadow mode changed", version=ref and ref.version)

    def _usable(self, wanted: dict[str, Any]) -> BundleRef | None:
        """The bundle on the local disk after its trial; None if it is broken, or not tried yet."""
        sha256, number = str(wanted["sha256"]), int(wanted["version"])
        ref = self.cache.ref(sha256, number)
        if ref is not None and ref in (self.current.champion, self.current.challenger):
            return ref
        if self.retries.begin(sha256, str(wanted.get("asked") or "")):
            self.current.reconsider(sha256)
        if not self.retries.allows(sha256):
            return None
        if ref is None:
            self._reject(sha256, number, "the registry has no digest of it")
            return None
        return ref if self._passes(ref, number) else None

    def _passes(self, ref: BundleRef, number: int) -> bool:
        try:
            reason = self._objection(ref, number)
        except Unfinished as error:
            if self.retries.unfinished(ref.sha256):
                self._reject(ref.sha256, number, f"{error}, {MAX_UNFINISHED} times")
            else:
                self._postpone(ref, "unfinished", str(error))
            return False
        except TryLater as error:
            self._postpone(ref, "postponed", str(error))
            return False
        if reason is not None:
            self._reject(ref.sha256, number, reason)
            return False
        self.retries.forget(ref.sha256)
        self.current.reconsider(ref.sha256)
        return True

    def _objection(self, ref: BundleRef, number: int) -> str | None:
        """Why a bundle must not answer, None if it may; it is downloaded if it is not here.

        Raises
        ------
        RcaError
            If the registry is away; the bundle is not rejected.
        TryLater
        """
        here = self.cache.has(ref)
        if here and ref == self.current.previous:
            # It has answered here before: a rollback needs no trial.
            return None
        assert ref.folder is not None  # noqa: S101  (a bundle of the registry has one)
        try:
            if not here:
                self.registry.fetch(number, ref.folder)
                # Its age counts from now, not from the times of the registry's files.
                os.utime(ref.folder)
                verify(ref.folder, ref.sha256)
        except BundleError as error:
            return error.message
        return self._tried(ref, self._stored())

    def _stored(self) -> Sequence[Window | str]:
        try:
            return self.recent()
        except RcaError as error:
            raise TryLater(f"stored windows cannot be listed: {error.message}") from error

    def _tried(self, ref: BundleRef, recent: Sequence[Window | str]) -> str | None:
        try:
            with self.trial() as diagnose:
                reason = objection(ref, diagnose, self.healthy(), recent)
        except TryLater:
            raise
        except Exception as error:
            _log.exception("a bundle could not be tried", sha256=ref.sha256)
            raise TryLater(f"unexpected {type(error).__name__}: {error}") from error
        self.metrics.model_trials.labels("passed" if reason is None else "rejected").inc()
        return reason

    def _answers_again(self, ref: BundleRef) -> bool:
        """Whether a bundle that has answered before may answer again; it is not tried on stored windows."""
        try:
            present = self.cache.has(ref)
            reason = None if present else "it is missing or damaged"
        except TryLater as error:
            present, reason = False, str(error)
        if present:
            reason = self._complaint(ref)
        if reason is not None:
            _log.error("a bundle on the disk cannot be used", sha256=ref.sha256, reason=reason)
        return reason is None

    def _complaint(self, ref: BundleRef) -> str | None:
        try:
            return self._tried(ref, ())
        except Unfinished as error:
            return str(error)
        except TryLater as error:
            _log.warning("a bundle answers again without a trial", sha256=ref.sha256, reason=str(error))
            return None

    def _postpone(self, ref: BundleRef, outcome: str, reason: str) -> None:
        self.retries.postpone(ref.sha256)
        self.current.postpone(ref.sha256, reason)
        self.metrics.model_trials.labels(outcome).inc()
        _log.warning(
            "the trial of a bundle is postponed", version=ref.version, sha256=ref.sha256, reason=reason
        )

    def _reject(self, sha256: str, number: int, reason: str) -> None:
        self.retries.close(sha256)
        self.current.reject(sha256, reason)
        self.metrics.models_rejected.inc()
        _log.error("a model of the registry is not used", version=number, sha256=sha256, reason=reason)
