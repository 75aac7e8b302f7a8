"""Cache of bundles on the disk, each in a folder named by its digest, and the version that answered last.

Replicas may share the folder. A bundle appears complete by a rename and never changes. A replica touches the
bundles it uses at each poll, and bundles not touched for long are deleted.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import orjson
import structlog

from rca.errors import BundleError
from rca.files import replace_file
from rca_api.models.bundle_trial import verify
from rca_api.shell.processes.bundles import BundleRef

STATE_FILE = "state.json"
#: Longer than a request that uses a bundle, and longer than the poll interval of another replica.
KEEP_SECONDS = 3600.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
_log = structlog.stdlib.get_logger("rca_api.models")


class BundleCache:
    """A folder of bundles.

    Parameters
    ----------
    keep_seconds : float
        How long an unused bundle is kept.
    """

    def __init__(self, folder: Path, keep_seconds: float = KEEP_SECONDS) -> None:
        self._folder = folder
        self._keep_seconds = keep_seconds

    def ref(self, sha256: str, version: int | None) -> BundleRef | None:
        """Place of a bundle, present or not; None if `sha256` is no digest."""
        return BundleRef(self._folder / sha256, sha256, version) if _SHA256.fullmatch(sha256) else None

    def has(self, ref: BundleRef) -> bool:
        """Whether a bundle is here, with all bytes as registered; a damaged one is deleted.

        Raises
        ------
        TryLater
            If the disk cannot be read.
        """
        if ref.folder is None or not ref.folder.exists():
            return False
        # First, so that another replica does not delete it meanwhile.
        _touch(ref.folder)
        try:
            verify(ref.folder, ref.sha256)
        except BundleError as error:
            _log.warning("a bundle on the disk is damaged", sha256=ref.sha256, reason=error.message)
            self._delete(ref.folder)
            return False
        return True

    def store_roles(self, roles: Mapping[str, BundleRef | None]) -> None:
        """Store which bundle has which role, for a restart while the registry is away."""
        document = {
            role: {"sha256": ref.sha256, "version": ref.version}
            for role, ref in roles.items()
            if ref is not None and ref.version is not None
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._folder / STATE_FILE, orjson.dumps(document))

    def stored_roles(self) -> dict[str, BundleRef]:
        """Bundle by role as stored last; empty if that is not known."""
        try:
            document = orjson.loads((self._folder / STATE_FILE).read_bytes())
            found = {part: self.ref(each["sha256"], each["version"]) for part, each in document.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("the stored roles of models cannot be read", reason=str(error))
            return {}
        return {part: ref for part, ref in found.items() if ref is not None}

    def tidy(self, used: Iterable[BundleRef | None]) -> None:
        """Mark the bundles that are used here, and delete those that no replica has used for long."""
        kept = {ref.folder for ref in used if ref is not None and ref.folder is not None}
        for folder in kept:
            _touch(folder)
        for path in self._folder.glob("*"):
            # Names with a dot are downloads and files of a killed writer.
            ours = _SHA256.fullmatch(path.name) or path.name.startswith(".")
            if ours and path not in kept and self._is_old(path):
                self._delete(path, unless_used=True)

    def _is_old(self, path: Path) -> bool:
        try:
            return time.time() - path.stat().st_mtime > self._keep_seconds
        except FileNotFoundError:
            return False

    def _delete(self, path: Path, *, unless_used: bool = False) -> None:
        """Rename, then delete; with `unless_used`, a bundle that was touched meanwhile is put back."""
        aside = path.with_name(f".{path.name.lstrip('.')}.{secrets.token_hex(4)}.old")
        with suppress(FileNotFoundError):
            path.rename(aside)
            if unless_used and not self._is_old(aside):
                with suppress(OSError):
                    aside.rename(path)
                    return
            if aside.is_dir():
                shutil.rmtree(aside, ignore_errors=True)
            else:
                aside.unlink()


def _touch(folder: Path) -> None:
    with suppress(FileNotFoundError):
        os.utime(folder)
