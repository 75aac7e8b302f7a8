"""Whether a bundle may answer: every byte as its manifest says, and sane answers to a few windows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import orjson
import structlog

from rca.diagnosis.result import Diagnosis
from rca.errors import BundleError, RcaError
from rca.telemetry.window import Window
from rca_api.models.current import BundleRef

#: Of a window, or of a stored one by its digest.
Diagnose = Callable[[BundleRef, Window | str], Diagnosis]
_log = structlog.stdlib.get_logger("rca_api.models")


class TryLater(Exception):
    """The bundle could not be tried for reasons that are not its own, such as a busy pool."""


def verify(folder: Path, sha256: str) -> None:
    """Compare the manifest with its digest and every file with the manifest; no model is loaded.

    Raises
    ------
    BundleError
        Naming what is missing or altered.
    """
    try:
        manifest = (folder / "manifest.json").read_bytes()
        if hashlib.sha256(manifest).hexdigest() != sha256:
            raise BundleError("manifest.json is not the one that was registered")
        for name, digest in orjson.loads(manifest)["files"].items():
            if Path(name).name != name:
                raise BundleError(f"the manifest names a file outside the bundle: {name!r}")
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
                raise BundleError(f"{name} does not match its SHA-256 in the manifest")
    except OSError as error:
        raise BundleError(
            f"{Path(error.filename or folder).name} cannot be read: {error.strerror}"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"the manifest is malformed: {error!r}") from error


def objection(
    ref: BundleRef, diagnose: Diagnose, healthy: Window, recent: Iterable[Window | str]
) -> str | None:
    """Why a bundle must not answer; None if nothing speaks against it.

    Parameters
    ----------
    diagnose : callable
        Raises `TryLater` where the bundle is not to blame.
    healthy : Window
        Must not be called sick.
    recent : iterable of Window or str
        Windows that were posted lately, or their digests; must be answered, whatever the answer.
    """
    try:
        if ref.folder is not None:
            verify(ref.folder, ref.sha256)
        found = diagnose(ref, healthy).failure_mode
        if found != "healthy":
            return f"it calls a healthy window {found}"
        for window in recent:
            diagnose(ref, window)
    except TryLater:
        raise
    except RcaError as error:
        return error.message
    except Exception as error:
        # It would fail callers in the same way, so whatever it is counts against the bundle.
        _log.exception("a bundle failed its smoke test", sha256=ref.sha256)
        return f"unexpected {type(error).__name__}: {error}"
    return None
