"""Checks of a bundle before it answers: its files match its manifest, and it can answer a few windows.

Only failures of the bundle itself reject it. Failures of disks, stores and stored windows do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from rca.diagnosis.result import Diagnosis
from rca.errors import BundleError, RcaError
from rca.window.window import Window
from rca_api.shell.processes.bundles import BundleRef

#: Diagnoses a window, or a stored window by its digest.
Diagnose = Callable[[BundleRef, Window | str], Diagnosis]
#: Number of stored windows that a bundle has to answer, if there are so many.
STORED_WINDOWS = 3
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class TryLater(Exception):
    """The bundle could not be tried for another reason, such as a store that is away."""


class Unfinished(TryLater):
    """The bundle took too long, or its process ended; if this repeats, the bundle is rejected."""


class WindowUnreadable(RcaError):
    """A stored window cannot be read, which says nothing about the bundle."""

    code = "window-unreadable"


class Hindered(RcaError):
    """The process could not work: the disk, the memory, the operator's priors."""

    code = "hindered"


def verify(folder: Path, sha256: str) -> None:
    """Compare the manifest with its digest and every file with the manifest; no model is loaded.

    Raises
    ------
    BundleError
        With the file that is missing or altered.
    TryLater
        If the disk cannot be read.
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
        reason = f"{Path(error.filename or folder).name} cannot be read: {error.strerror}"
        if is_passing(error):
            raise TryLater(reason) from error
        raise BundleError(reason) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"the manifest is malformed: {error!r}") from error


def is_passing(error: BaseException | None) -> bool:
    """Whether an error is a failure of the disk, not a missing file."""
    return isinstance(error, OSError) and not isinstance(error, _ABSENT)


def objection(
    ref: BundleRef, diagnose: Diagnose, healthy: Window, recent: Sequence[Window | str] = ()
) -> str | None:
    """Why a bundle must not answer; None if it may.

    Parameters
    ----------
    diagnose : callable
        Raises `WindowUnreadable` if a stored window cannot be read, and `TryLater` after another failure that
        is not the bundle's.
    healthy : Window
        Its failure mode must be ``healthy``.
    recent : sequence of Window or str
        Windows posted recently, or their digests. `STORED_WINDOWS` of them must get an answer; any answer
        will do.

    Raises
    ------
    TryLater
        If the trial could not be completed.
    """
    try:
        found = diagnose(ref, healthy).failure_mode
        if found != "healthy":
            return f"it calls a healthy window {found}"
        answered = 0
        for window in recent:
            answered += _answers(ref, diagnose, window)
            if answered == STORED_WINDOWS:
                break
    except RcaError as error:
        return error.message
    if recent and not answered:
        raise TryLater("no stored window can be read")
    return None


def _answers(ref: BundleRef, diagnose: Diagnose, window: Window | str) -> bool:
    try:
        diagnose(ref, window)
    except WindowUnreadable:
        return False
    return True
