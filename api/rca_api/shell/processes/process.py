"""Inside a process of the pool: its state, its start, and how it runs a task.

This module imports nothing of the web framework or the database.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from rca import process as command_process
from rca.diagnosis.result import ModelVersion
from rca.errors import RcaError
from rca_api.shell.observability import logs
from rca_api.shell.observability.tracing import Timed, Watch
from rca_api.shell.processes.bundles import BundleRef, LoadedBundles
from rca_api.shell.store.window_store import WindowStore

_log = structlog.stdlib.get_logger("rca_api.shell.processes")

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Resident size up to which a process keeps its free memory for the next task.
_KEPT_BYTES = 256 << 20


@dataclass(frozen=True)
class Setup:
    """Settings of a process."""

    champion: BundleRef
    priors: Path | None
    window_store_url: str
    log_level: str = "info"
    max_memory_bytes: int | None = None
    site: Path | None = None


@dataclass
class Context:
    """The first argument of a task.

    Attributes
    ----------
    max_memory_bytes : int or None
        Most memory of one task, beyond that of an idle process; None for no limit.
    stages : dict of str to Timed
        Stages of the present task.
    """

    bundles: LoadedBundles
    windows: WindowStore
    max_memory_bytes: int | None = None
    stages: dict[str, Timed] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage, whether it succeeds or not."""
        watch = Watch()
        try:
            yield
        finally:
            self.stages[name] = watch.read()


@dataclass(frozen=True)
class Report:
    """A process that is ready, and whether the champion can be used in it."""

    pid: int
    model: ModelVersion | None
    failure: str | None


@dataclass(frozen=True)
class Reply:
    """Outcome of a task: its value, its error, or the traceback of an unexpected exception."""

    value: Any
    stages: dict[str, Timed]
    seconds: float
    error: RcaError | None = None
    crash: str | None = None


class _Process:
    """State of this process, made by `initialize`."""

    context: Context
    report: Report


def initialize(setup: Setup) -> Context:
    """Warm up and give what tasks use; never raises: the report says why the process cannot work."""
    _end_with_the_parent()
    _name_this_process()
    logs.configure(setup.log_level)
    structlog.contextvars.bind_contextvars(process=os.getpid())
    began = time.perf_counter()
    command_process.take_over()
    command_process.forgo_pandas()
    windows = WindowStore(setup.window_store_url)
    _Process.context = Context(LoadedBundles(setup.priors, setup.site), windows, setup.max_memory_bytes)
    model, failure = None, None
    try:
        model = _Process.context.bundles.warm(setup.champion)
    except RcaError as error:
        failure = str(error)
    except Exception as error:
        failure = f"unexpected {type(error).__name__}: {error}"
    _Process.report = Report(os.getpid(), model, failure)
    # The loaded objects stay, so full garbage collections need not visit them during requests.
    gc.collect()
    gc.freeze()
    _log.info("process ready", seconds=round(time.perf_counter() - began, 3), failure=failure)
    return _Process.context


def report() -> Report:
    """Report that this process is ready; its first task."""
    return _Process.report


def call(task: Callable[..., Any], arguments: tuple[Any, ...], ids: Mapping[str, Any]) -> Reply:
    """Run one task; errors are part of the reply, so that they need not be picklable.

    Parameters
    ----------
    ids : mapping
        Ids for the log lines of this task, such as that of the request.
    """
    with structlog.contextvars.bound_contextvars(**ids):
        reply = _run(task, arguments)
        _log.debug("task", task=task.__name__, milliseconds=round(1e3 * reply.seconds, 2))
    return reply


def _run(task: Callable[..., Any], arguments: tuple[Any, ...]) -> Reply:
    try:
        return _outcome(task, arguments)
    finally:
        _give_memory_back()


def _outcome(task: Callable[..., Any], arguments: tuple[Any, ...]) -> Reply:
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


def _give_memory_back() -> None:
    """Return free memory to the system after a large task: its pieces may not fit the next one."""
    with suppress(OSError):
        if int(_STATM.read_text().split()[1]) * _PAGE_BYTES < _KEPT_BYTES:
            return
    pa.default_memory_pool().release_unused()
    # Only glibc has this function.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _name_this_process() -> None:
    # For `ps` and `top`; systems without this file show the name of the interpreter.
    with suppress(OSError):
        Path("/proc/self/comm").write_text("rca-compute")


def _end_with_the_parent() -> None:
    """End this process when its parent ends, even by SIGKILL: otherwise it would run for ever."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()
