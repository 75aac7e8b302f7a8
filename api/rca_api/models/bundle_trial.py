"""The trial of a bundle before it answers: its files match its manifest, and it can answer a few windows.

Only failures of the bundle itself reject it. Failures of disks, stores and stored windows do not. The windows
are diagnosed in a child process. The processes of the pool are not used: a bundle that hangs or uses all
memory must not take one of them from requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson

from rca.diagnosis.result import Diagnosis, ModelVersion
from rca.errors import BundleError, RcaError
from rca.window.window import Window
from rca_api.diagnoses.stored import read_stored
from rca_api.shell.processes import process
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.processes.child_process import ChildEnded, ChildProcess
from rca_api.shell.processes.process import Context, Setup
from rca_api.shell.processes.slot import START_SECONDS
from rca_api.shell.requests.problems import ProblemError

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


@dataclass(eq=False)
class BundleTrial:
    """Starts a child process for the trial of one bundle.

    Attributes
    ----------
    setup : callable
        Gives the setup of the child.
    seconds : float
        For loading the bundle and one diagnosis. The start of the child does not count.
    loaded : callable
        Called with what a bundle turned out to be, for readiness and metrics.
    program : callable
        Runs in the child.
    """

    setup: Callable[[], Setup]
    seconds: float
    loaded: Callable[[BundleRef, ModelVersion], None]
    program: Callable[..., None] = process.serve
    _child: ChildProcess | None = field(init=False, default=None)
    _closed: bool = field(init=False, default=False)

    @contextmanager
    def __call__(self) -> Iterator[Diagnose]:
        """Give a function that diagnoses with a bundle; the child lasts as long as the context.

        Raises
        ------
        TryLater
            If the child cannot be started.
        """
        try:
            child = self._child = ChildProcess(self.program, self.setup())
        except OSError as error:
            raise TryLater(f"no process can be started: {error}") from error
        try:
            self._await(child)
            yield partial(self._diagnose, child)
        finally:
            self._child = None
            child.end()

    def close(self) -> None:
        """End the trial in progress, because the service ends."""
        self._closed = True
        child = self._child
        if child is not None:
            child.end()

    def _await(self, child: ChildProcess) -> None:
        try:
            child.await_ready(START_SECONDS)
        except (TimeoutError, ChildEnded) as error:
            raise TryLater(f"no process can be started: {error}") from error
        if self._closed:
            raise TryLater("the service ends")

    def _diagnose(self, child: ChildProcess, ref: BundleRef, window: Window | str) -> Diagnosis:
        ids = {"sha256": ref.sha256, "version": ref.version}
        try:
            reply = child.call(diagnose, ref, window, timeout=self.seconds, ids=ids)
        except TimeoutError:
            raise Unfinished(f"it did not answer within {self.seconds:g} s") from None
        except ChildEnded as error:
            if self._closed:
                raise TryLater("the service ends") from error
            raise Unfinished(f"the process that tried it ended: {error}") from error
        if reply.crash is not None:
            raise RcaError(f"unexpected {reply.crash.kind}: {reply.crash.text}")
        if isinstance(reply.error, Hindered):
            raise TryLater(reply.error.message)
        if reply.error is not None:
            raise reply.error
        try:
            found = read_stored(reply.value)
        except ProblemError as error:
            # The installation was updated under this process; the new one tries the bundle again.
            raise TryLater(error.detail) from None
        self.loaded(ref, found.model)
        return found


def attempt(context: Context, ref: BundleRef, window: Window | str) -> Diagnosis:
    """Diagnose a window, or a stored one by its digest.

    Raises
    ------
    WindowUnreadable
        If the stored window cannot be read.
    Hindered
        If the process could not work: the disk, the memory, the operator's priors.
    RcaError
        If the bundle is at fault.
    """
    try:
        held = context.windows.get(window) if isinstance(window, str) else window
    except (RcaError, OSError, MemoryError) as error:
        raise WindowUnreadable(f"the window {window} cannot be read: {error}") from error
    with _hindrances():
        _prepare(context, ref)
        return context.bundles.diagnose(ref, held)


@contextmanager
def _hindrances() -> Iterator[None]:
    """Failures of the disk and the memory do not count against the bundle."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise Hindered(f"{type(error).__name__}: {error}") from error


def _prepare(context: Context, ref: BundleRef) -> None:
    try:
        context.bundles.prepare(ref)
    except BundleError as error:
        if is_passing(error.__cause__):
            raise Hindered(error.message) from error
        raise
    except RcaError as error:
        # The operator's priors: no bundle could be used with them.
        raise Hindered(error.message) from error


def diagnose(context: Context, ref: BundleRef, window: Window | str) -> str:
    """Diagnose a window, or a stored one by its digest, in the child; gives JSON.

    Raises
    ------
    RcaError
        As `attempt` does.
    """
    with _hindrances():
        return attempt(context, ref, window).to_json()
