"""Whether a bundle may answer: every byte as its manifest says, and sane answers to a few windows.

Only what the bundle itself did counts against it: trouble with disks, stores and stored windows does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from rca.diagnosis.result import Diagnosis
from rca.errors import BundleError, RcaError
from rca.telemetry.window import Window
from rca_api.models.current import BundleRef

#: Of a window, or of a stored one by its digest.
Diagnose = Callable[[BundleRef, Window | str], Diagnosis]
#: Stored windows that a bundle has to answer, as far as there are so many.
ENOUGH = 3
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class TryLater(Exception):
    """The bundle could not be tried for reasons that are not its own, such as a store that is away."""


class Unfinished(TryLater):
    """The bundle took too long or its process ended: its own fault if it happens again and again."""


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
        Naming what is missing or altered.
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
        told = f"{Path(error.filename or folder).name} cannot be read: {error.strerror}"
        if is_passing(error):
            raise TryLater(told) from error
        raise BundleError(told) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"the manifest is malformed: {error!r}") from error


def is_passing(error: BaseException | None) -> bool:
    """Whether an error is of the disk rather than of what is on it."""
    return isinstance(error, OSError) and not isinstance(error, _ABSENT)


def objection(
    ref: BundleRef, diagnose: Diagnose, healthy: Window, recent: Sequence[Window | str] = ()
) -> str | None:
    """Why a bundle must not answer; None if nothing speaks against it.

    Parameters
    ----------
    diagnose : callable
        Raises `WindowUnreadable` where a stored window cannot be had, and `TryLater` where the bundle is not
        to blame for anything else.
    healthy : Window
        Must not be called sick.
    recent : sequence of Window or str
        Windows that were posted lately, or their digests; `ENOUGH` must be answered, whatever the answer.

    Raises
    ------
    TryLater
        If it could not be tried to the end.
    """
    try:
        found = diagnose(ref, healthy).failure_mode
        if found != "healthy":
            return f"it calls a healthy window {found}"
        answered = 0
        for window in recent:
            answered += _answers(ref, diagnose, window)
            if answered == ENOUGH:
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
