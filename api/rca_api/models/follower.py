"""Follows the registry: what is promoted there answers here, once it was downloaded, verified and tried.

Everything that can go wrong leaves the champion in place. A bundle that is broken is not tried again as
long as this process lives; a registry that is away is asked again at the next turn; and the last champion
that answered is found on the disk after a restart.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import structlog

from rca.errors import BundleError, RcaError
from rca.telemetry.files import replace_file
from rca.telemetry.window import Window
from rca_api.metrics import Metrics
from rca_api.models.current import BundleRef, CurrentModels
from rca_api.models.registry import RegistryClient
from rca_api.models.smoke import Diagnose, TryLater, objection, verify
from rca_api.settings import Settings

STATE_FILE = "state.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: A bundle that nobody refers to any more may still be asked for by a request that began before.
_KEEP_SECONDS = 3600.0
_log = structlog.stdlib.get_logger("rca_api.models")


class Follower:
    """Makes `CurrentModels` what the registry's aliases say.

    Parameters
    ----------
    settings : Settings
    current : CurrentModels
    registry : RegistryClient
    metrics : Metrics
    diagnose : callable
        For the smoke test.
    healthy : callable
        A small healthy window.
    recent : callable
        The newest stored windows or their digests, a few.
    """

    def __init__(
        self,
        settings: Settings,
        current: CurrentModels,
        registry: RegistryClient,
        metrics: Metrics,
        *,
        diagnose: Diagnose,
        healthy: Callable[[], Window],
        recent: Callable[[], Sequence[Window | str]] = tuple,
    ) -> None:
        self._settings = settings
        self._current = current
        self._registry = registry
        self._metrics = metrics
        self._diagnose = diagnose
        self._healthy = healthy
        self._recent = recent
        self._folder = settings.data_dir / "models"

    async def follow(self) -> None:
        """Ask the registry again and again, until cancelled."""
        while self._settings.follow_seconds > 0:
            await asyncio.to_thread(self.poll)
            await asyncio.sleep(self._settings.follow_seconds)

    def resume(self) -> None:
        """Let the last champion that is still sound answer, without asking the registry."""
        if not (self._settings.follow_seconds and self._settings.has_registry):
            return
        for ref in self._remembered():
            try:
                reason = self._objection(ref)
            except TryLater:
                reason = "it could not be tried"
            if reason is None:
                self._current.swap(ref)
                return
            _log.error("a bundle on the disk cannot be used", sha256=ref.sha256, reason=reason)

    def poll(self) -> None:
        """Ask the registry once and do what it says; never raises."""
        if not self._settings.has_registry:
            return
        try:
            self._poll()
            self._registry.rest()
        except Exception as error:
            # Whatever it is, the champion answers on and the next turn comes.
            _log.exception("following the registry failed")
            self._failed(f"unexpected {type(error).__name__}: {error}")

    def _poll(self) -> None:
        try:
            held = self._registry.aliases()
        except RcaError as error:
            self._failed(error.message)
            return
        self._current.registry_failed(None)
        try:
            self._follow_champion(held.get("champion"))
            if self._settings.shadow_share > 0:
                self._follow_challenger(held.get("challenger"))
        except RcaError as error:
            self._failed(error.message)
        except TryLater as error:
            _log.info("a bundle is tried later", reason=str(error))
        self._tidy()

    def _failed(self, reason: str) -> None:
        self._metrics.registry_failures.inc()
        if self._current.choice.failure != reason:
            _log.warning("the registry cannot be followed", reason=reason)
        self._current.registry_failed(reason)

    def _follow_champion(self, wanted: dict[str, Any] | None) -> None:
        current = self._current.champion
        ref = self._current.own if wanted is None else self._usable(wanted)
        if ref is None or ref == current:
            return
        self._current.swap(ref)
        self._remember()
        self._metrics.model_swaps.inc()
        _log.info("another model answers", version=ref.version, sha256=ref.sha256, before=current.sha256)

    def _follow_challenger(self, wanted: dict[str, Any] | None) -> None:
        ref = None if wanted is None else self._usable(wanted)
        if ref != self._current.challenger:
            self._current.challenge(ref)
            _log.info("another model is asked in the shadow", version=ref and ref.version)

    def _usable(self, wanted: dict[str, Any]) -> BundleRef | None:
        """The bundle on the local disk, tried; None if it is known to be broken or turns out to be."""
        sha256, number = str(wanted["sha256"]), int(wanted["version"])
        ref = BundleRef(self._folder / sha256, sha256, number)
        if sha256 in self._current.choice.rejected:
            return None
        if ref in (self._current.champion, self._current.previous, self._current.challenger):
            return ref
        reason = self._got(ref) or self._objection(ref)
        if reason is None:
            return ref
        self._current.reject(sha256, reason)
        self._metrics.models_rejected.inc()
        _log.error("a model of the registry is not used", version=number, sha256=sha256, reason=reason)
        return None

    def _got(self, ref: BundleRef) -> str | None:
        """Download a bundle that is not there yet; why it cannot be used, if it cannot.

        Raises
        ------
        RcaError
            If the registry is away, which says nothing about the bundle.
        """
        if ref.folder is None or not _SHA256.fullmatch(ref.sha256) or ref.version is None:
            return "the registry has no digest of it"
        if ref.folder.exists():
            try:
                verify(ref.folder, ref.sha256)
            except BundleError:
                # Damaged here, which says nothing about the registry's copy.
                shutil.rmtree(ref.folder)
        if not ref.folder.exists():
            try:
                self._registry.fetch(ref.version, ref.folder)
            except BundleError as error:
                return error.message
            # Its age is counted from here, whatever times the registry's files have.
            os.utime(ref.folder)
        return None

    def _objection(self, ref: BundleRef) -> str | None:
        return objection(ref, self._diagnose, self._healthy(), self._recent())

    def _remember(self) -> None:
        """Write down who answers, for a restart while the registry is away."""
        choice = self._current.choice
        named = {"champion": choice.champion, "previous": choice.previous}
        document = {
            part: {"sha256": ref.sha256, "version": ref.version}
            for part, ref in named.items()
            if ref is not None and ref.version is not None
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._folder / STATE_FILE, orjson.dumps(document))

    def _remembered(self) -> list[BundleRef]:
        try:
            document = orjson.loads((self._folder / STATE_FILE).read_bytes())
            # Rolled back to the operator's own bundle: then there is none to resume.
            parts = [document["champion"], document.get("previous")] if "champion" in document else []
            return [
                BundleRef(self._folder / each["sha256"], each["sha256"], each["version"])
                for each in parts
                if each is not None and _SHA256.fullmatch(each["sha256"])
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("it is not known which model answered before", reason=str(error))
            return []

    def _tidy(self) -> None:
        """Delete bundles that nobody refers to any more."""
        choice = self._current.choice
        kept = {
            ref.folder for ref in (choice.champion, choice.previous, choice.challenger) if ref is not None
        }
        for folder in self._folder.glob("[0-9a-f]*"):
            if folder not in kept and time.time() - folder.stat().st_mtime > _KEEP_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
