"""Inside a process of the pool: what it holds, how it starts and ends, and how it runs a task.

Nothing of the web framework or the database is imported here.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rca.commands import process as command_process
from rca.diagnosis.result import ModelVersion
from rca.errors import RcaError
from rca_api.compute.bundles import LoadedBundles
from rca_api.models.current import BundleRef
from rca_api.store.window_store import WindowStore


@dataclass(frozen=True)
class Setup:
    """What a process is started with."""

    champion: BundleRef
    priors: Path | None
    window_store_url: str


@dataclass
class Context:
    """What a task may use: its first argument.

    Attributes
    ----------
    bundles : LoadedBundles
    windows : WindowStore
    stages : dict of str to float
        Seconds by stage of the task that runs.
    """

    bundles: LoadedBundles
    windows: WindowStore
    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage, whether it succeeds or not."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = time.perf_counter() - began


@dataclass(frozen=True)
class Report:
    """A process that is ready to work, and whether the champion can be used in it."""

    pid: int
    model: ModelVersion | None
    failure: str | None


@dataclass(frozen=True)
class Reply:
    """What became of a task: its value, or the refusal it ended with, or the traceback of a defect."""

    value: Any
    stages: dict[str, float]
    seconds: float
    error: RcaError | None = None
    crash: str | None = None


class _Process:
    """State of this process, made by `initialize`."""

    context: Context
    report: Report


def initialize(setup: Setup) -> None:
    """Get warm; never raises, because a process that says why it cannot work is easier to mend."""
    _end_with_the_parent()
    _name_this_process()
    command_process.take_over()
    command_process.forgo_pandas()
    _Process.context = Context(LoadedBundles(setup.priors), WindowStore(setup.window_store_url))
    model, failure = None, None
    try:
        model = _Process.context.bundles.warm(setup.champion)
    except RcaError as error:
        failure = str(error)
    except Exception as error:
        failure = f"unexpected {type(error).__name__}: {error}"
    _Process.report = Report(os.getpid(), model, failure)
    # What was loaded stays for good: keep full collections from walking it during requests.
    gc.collect()
    gc.freeze()


def report() -> Report:
    """Say that this process is ready; the first task it is given."""
    return _Process.report


def call(task: Callable[..., Any], arguments: tuple[Any, ...]) -> Reply:
    """Run one task; errors become part of the reply, so that none depends on being picklable."""
    context = _Process.context
    context.stages = {}
    began = time.perf_counter()
    try:
        value = task(context, *arguments)
    except RcaError as error:
        return Reply(None, context.stages, time.perf_counter() - began, error=error.with_traceback(None))
    except Exception:
        return Reply(None, context.stages, time.perf_counter() - began, crash=traceback.format_exc())
    return Reply(value, context.stages, time.perf_counter() - began)


def _end_with_the_parent() -> None:
    """A service that was killed must not leave processes behind, not even one that is busy for minutes."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _name_this_process() -> None:
    # For `ps` and `top`; a system without this file shows the interpreter's name.
    with suppress(OSError):
        Path("/proc/self/comm").write_text("rca-compute")
