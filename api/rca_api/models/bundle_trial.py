"""Trying a bundle in a process of its own, asked from a thread.

Not in one of the pool's: a bundle that hangs or eats all memory must not take a process from those who wait.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog

from rca.diagnosis.result import Diagnosis, ModelVersion
from rca.errors import BundleError, RcaError
from rca.telemetry.window import Window
from rca_api.compute.deadline import Deadline
from rca_api.compute.process import Context, Reply, Setup
from rca_api.compute.slot import Slot, WorkerDied, WorkerLost
from rca_api.models.bundle_check import Diagnose, Hindered, TryLater, Unfinished, WindowUnreadable, is_passing
from rca_api.models.current import BundleRef

_log = structlog.stdlib.get_logger("rca_api.models")


class Trial:
    """Opens a process for the smoke test of one bundle.

    Parameters
    ----------
    setup : callable
        Gives what the process is started with.
    seconds : float
        For loading the bundle and one diagnosis; starting the process does not count.
    loaded : callable
        Told what a bundle turned out to be: readiness and metrics name it once it answers.
    """

    def __init__(
        self,
        setup: Callable[[], Setup],
        seconds: float,
        loaded: Callable[[BundleRef, ModelVersion], None],
    ) -> None:
        self._setup = setup
        self._seconds = seconds
        self._loaded = loaded
        self._slot: Slot | None = None
        self._closed = False

    @contextmanager
    def __call__(self) -> Iterator[Diagnose]:
        """Give what diagnoses with a bundle, as long as the context lasts.

        Raises
        ------
        TryLater
            If the process cannot be started.
        """
        slot = Slot()
        with asyncio.Runner() as runner:
            try:
                self._slot = slot
                runner.run(slot.start(self._setup()))
                if self._closed:
                    raise TryLater("the service ends")

                def diagnose(ref: BundleRef, window: Window | str) -> Diagnosis:
                    return self._diagnosed(runner, slot, ref, window)

                yield diagnose
            except WorkerLost as error:
                raise TryLater(f"no process can be started: {error}") from error
            finally:
                self._slot = None
                runner.run(slot.stop())

    def close(self) -> None:
        """End what is being tried."""
        self._closed = True
        slot = self._slot
        if slot is not None and slot.report is not None:
            with suppress(ProcessLookupError):
                os.kill(slot.report.pid, signal.SIGKILL)

    def _diagnosed(
        self, runner: asyncio.Runner, slot: Slot, ref: BundleRef, window: Window | str
    ) -> Diagnosis:
        try:
            reply: Reply = runner.run(slot.ask(attempt, (ref, window), Deadline.after(self._seconds)))
        except TimeoutError:
            raise Unfinished(f"it did not answer within {self._seconds:g} s") from None
        except WorkerDied as error:
            raise Unfinished(f"the process that tried it ended: {error}") from error
        if reply.crash is not None:
            _log.error("a bundle failed its smoke test", sha256=ref.sha256, traceback=reply.crash)
            raise RcaError(f"unexpected {reply.crash.strip().splitlines()[-1]}")
        if isinstance(reply.error, Hindered):
            raise TryLater(reply.error.message)
        if reply.error is not None:
            raise reply.error
        found: Diagnosis = reply.value
        self._loaded(ref, found.model)
        return found


def attempt(context: Context, ref: BundleRef, window: Window | str) -> Diagnosis:
    """Diagnose a window, or a stored one by its digest; what is not the bundle's fault is told apart."""
    try:
        held = context.windows.get(window) if isinstance(window, str) else window
    except (RcaError, OSError, MemoryError) as error:
        raise WindowUnreadable(f"the window {window} cannot be read: {error}") from error
    try:
        _prepare(context, ref)
        return context.bundles.diagnose(ref, held)
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
