"""Bundles on the disk, each in a folder named by its digest, and who of them answered last.

Replicas may share the place. A bundle appears whole by a rename and is never changed; whoever uses one
touches it at every poll, and only what nobody has touched for long is deleted.
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
from rca.telemetry.files import replace_file
from rca_api.models.bundle_check import verify
from rca_api.models.current import BundleRef

STATE_FILE = "state.json"
#: Longer than any request that began with a bundle, and than the polls of another replica are apart.
KEEP_SECONDS = 3600.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
_log = structlog.stdlib.get_logger("rca_api.models")


class Shelf:
    """A folder of bundles.

    Parameters
    ----------
    folder : Path
    keep_seconds : float
        How long a bundle is kept that nobody uses.
    """

    def __init__(self, folder: Path, keep_seconds: float = KEEP_SECONDS) -> None:
        self._folder = folder
        self._keep_seconds = keep_seconds

    def ref(self, sha256: str, version: int | None) -> BundleRef | None:
        """Where a bundle is or would be; None for what is no digest."""
        return BundleRef(self._folder / sha256, sha256, version) if _SHA256.fullmatch(sha256) else None

    def has(self, ref: BundleRef) -> bool:
        """Whether a bundle is here, byte by byte as it was registered; one that is not is thrown away.

        Raises
        ------
        TryLater
            If the disk cannot be read.
        """
        if ref.folder is None or not ref.folder.exists():
            return False
        # First, so that another replica does not delete what is found sound here.
        _touch(ref.folder)
        try:
            verify(ref.folder, ref.sha256)
        except BundleError as error:
            _log.warning("a bundle on the disk is damaged", sha256=ref.sha256, reason=error.message)
            self._delete(ref.folder)
            return False
        return True

    def remember(self, parts: Mapping[str, BundleRef | None]) -> None:
        """Write down who plays which part, for a restart while the registry is away."""
        document = {
            part: {"sha256": ref.sha256, "version": ref.version}
            for part, ref in parts.items()
            if ref is not None and ref.version is not None
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._folder / STATE_FILE, orjson.dumps(document))

    def remembered(self) -> dict[str, BundleRef]:
        """Who played which part; nobody where that is not known."""
        try:
            document = orjson.loads((self._folder / STATE_FILE).read_bytes())
            found = {part: self.ref(each["sha256"], each["version"]) for part, each in document.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("it is not known which model answered before", reason=str(error))
            return {}
        return {part: ref for part, ref in found.items() if ref is not None}

    def tidy(self, used: Iterable[BundleRef | None]) -> None:
        """Say which bundles are used here, and delete what no replica has used for long."""
        kept = {ref.folder for ref in used if ref is not None and ref.folder is not None}
        for folder in kept:
            _touch(folder)
        for path in self._folder.glob("*"):
            # Names with a dot: downloads and files whose writer was killed.
            ours = _SHA256.fullmatch(path.name) or path.name.startswith(".")
            if ours and path not in kept and self._is_old(path):
                self._delete(path, unless_used=True)

    def _is_old(self, path: Path) -> bool:
        try:
            return time.time() - path.stat().st_mtime > self._keep_seconds
        except FileNotFoundError:
            return False

    def _delete(self, path: Path, *, unless_used: bool = False) -> None:
        """Take it out of sight in one step; what was touched at the last moment is put back."""
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
