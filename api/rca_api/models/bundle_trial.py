"""The trial of a bundle in a child process: ``python -m rca_api.models.bundle_trial``.

The processes of the pool are not used: a bundle that hangs or uses all memory must not take one of them from
requests. Started as a module, this file is the child: its first message is its setup, and its job is
`diagnose`, see `rca_api.shell.processes.child_process`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from rca.diagnosis.result import Diagnosis, ModelVersion
from rca.errors import BundleError, RcaError
from rca.window.window import Window
from rca_api.diagnoses.stored import read_stored
from rca_api.models.bundle_check import Diagnose, Hindered, TryLater, Unfinished, WindowUnreadable, is_passing
from rca_api.shell.processes import process
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.processes.child_process import (
    REPORT,
    UNEXPECTED,
    ChildEnded,
    ChildProcess,
    JobFailed,
    Message,
    Parent,
)
from rca_api.shell.processes.process import Context, Setup
from rca_api.shell.requests.problems import ProblemError

TRIAL_COMMAND = (sys.executable, "-m", "rca_api.models.bundle_trial")
#: A child that is not ready by then cannot be used; imports from a cold disk take a few seconds.
_TRIAL_START_SECONDS = 120.0


class BundleTrial:
    """Starts a child process for the trial of one bundle.

    Parameters
    ----------
    setup : callable
        Gives the setup of the child.
    seconds : float
        For loading the bundle and one diagnosis. The start of the child does not count.
    loaded : callable
        Called with what a bundle turned out to be, for readiness and metrics.
    command : sequence of str
        Starts the child.
    """

    def __init__(
        self,
        setup: Callable[[], Setup],
        seconds: float,
        loaded: Callable[[BundleRef, ModelVersion], None],
        command: Sequence[str] = TRIAL_COMMAND,
    ) -> None:
        self._setup = setup
        self._seconds = seconds
        self._loaded = loaded
        self._command = command
        self._child: ChildProcess | None = None
        self._closed = False

    @contextmanager
    def __call__(self) -> Iterator[Diagnose]:
        """Give a function that diagnoses with a bundle; the child lasts as long as the context.

        Raises
        ------
        TryLater
            If the child cannot be started.
        """
        try:
            child = ChildProcess(self._command)
        except OSError as error:
            raise TryLater(f"no process can be started: {error}") from error
        self._child = child
        try:
            self._start(child)
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

    def _start(self, child: ChildProcess) -> None:
        # Not on the command line, where others see it: the URL of the window store may hold a password.
        child.send(_setup_message(self._setup()))
        try:
            child.await_ready(_TRIAL_START_SECONDS)
        except (TimeoutError, ChildEnded) as error:
            raise TryLater(f"no process can be started: {error}") from error
        if self._closed:
            raise TryLater("the service ends")

    def _diagnose(self, child: ChildProcess, ref: BundleRef, window: Window | str) -> Diagnosis:
        content = window if isinstance(window, str) else window.to_json().decode()
        place = "digest" if isinstance(window, str) else "document"
        try:
            document = child.call("diagnose", self._seconds, bundle=_bundle_message(ref), **{place: content})
        except TimeoutError:
            raise Unfinished(f"it did not answer within {self._seconds:g} s") from None
        except ChildEnded as error:
            if self._closed:
                raise TryLater("the service ends") from error
            raise Unfinished(f"the process that tried it ended: {error}") from error
        except JobFailed as failed:
            raise _trial_error(failed) from None
        try:
            found = read_stored(document)
        except ProblemError as error:
            # The installation was updated under this process; the new one tries the bundle again.
            raise TryLater(error.detail) from None
        self._loaded(ref, found.model)
        return found


def _trial_error(failed: JobFailed) -> Exception:
    if failed.code == Hindered.code:
        return TryLater(failed.detail)
    if failed.code == WindowUnreadable.code:
        return WindowUnreadable(failed.detail)
    if failed.code == UNEXPECTED:
        return RcaError(f"{failed.detail}: {failed.reason}")
    return BundleError(failed.detail) if failed.code == BundleError.code else RcaError(failed.detail)


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


def _setup_message(setup: Setup) -> Message:
    return {
        "champion": _bundle_message(setup.champion),
        "priors": None if setup.priors is None else str(setup.priors),
        "window_store_url": setup.window_store_url,
        "log_level": setup.log_level,
        "site": None if setup.site is None else str(setup.site),
    }


def _read_setup(message: Message) -> Setup:
    priors, site = message["priors"], message["site"]
    return Setup(
        _read_bundle(message["champion"]),
        None if priors is None else Path(priors),
        message["window_store_url"],
        message["log_level"],
        site=None if site is None else Path(site),
    )


def _bundle_message(ref: BundleRef) -> Message:
    folder = None if ref.folder is None else str(ref.folder)
    return {"folder": folder, "sha256": ref.sha256, "version": ref.version}


def _read_bundle(message: Message) -> BundleRef:
    folder = message["folder"]
    return BundleRef(None if folder is None else Path(folder), message["sha256"], message["version"])


def diagnose(context: Context, bundle: Message, digest: str = "", document: str = "") -> Any:
    """The job of the child: diagnose a window as JSON, or a stored one by its digest; gives JSON.

    Raises
    ------
    RcaError
        As `attempt` does.
    """
    ref = _read_bundle(bundle)
    # Until the next job, so that the log of an unexpected failure names the bundle.
    structlog.contextvars.bind_contextvars(sha256=ref.sha256, version=ref.version)
    with _hindrances():
        window = digest or Window.from_json(document.encode())
        return attempt(context, ref, window).to_json()


def main(arguments: list[str] | None = None) -> None:
    """Serve trials until the parent ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(REPORT, type=int, required=True)
    parent = Parent(parser.parse_args(arguments).report)
    context = process.initialize(_read_setup(parent.receive()))
    parent.serve({"diagnose": partial(diagnose, context)})


if __name__ == "__main__":
    main()
