"""Inside a process of the pool: its state, its start, and how it runs a task.

This module imports nothing of the web framework or the database.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
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
from rca_api.shell.processes.child_process import Parent, Reply, outcome
from rca_api.shell.processes.held_segments import HeldSegments
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
    segments : HeldSegments
        Telemetry of running jobs that was read last.
    """

    bundles: LoadedBundles
    windows: WindowStore
    max_memory_bytes: int | None = None
    stages: dict[str, Timed] = field(default_factory=dict)
    segments: HeldSegments = field(default_factory=HeldSegments)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage, whether it succeeds or not."""
        watch = Watch()
        try:
            yield
        finally:
            self.stages[name] = watch.read()


@dataclass(frozen=True)
class ProcessReport:
    """A process that is ready, and whether the champion can be used in it."""

    pid: int
    model: ModelVersion | None
    failure: str | None


def serve(parent: Parent, setup: Setup) -> None:
    """Program of a child process: warm up, then run the tasks that the parent calls."""
    context, report = initialize(setup)
    parent.serve(context, report, call)


def initialize(setup: Setup) -> tuple[Context, ProcessReport]:
    """Warm up and give what tasks use; never raises: the report says why the process cannot work."""
    _name_this_process()
    logs.configure(setup.log_level)
    structlog.contextvars.bind_contextvars(process=os.getpid())
    began = time.perf_counter()
    command_process.take_over()
    command_process.forgo_pandas()
    windows = WindowStore(setup.window_store_url)
    context = Context(LoadedBundles(setup.priors, setup.site), windows, setup.max_memory_bytes)
    model, failure = None, None
    try:
        model = context.bundles.warm(setup.champion)
    except RcaError as error:
        failure = str(error)
    except Exception as error:
        failure = f"unexpected {type(error).__name__}: {error}"
    # The loaded objects stay, so full garbage collections need not visit them during requests.
    gc.collect()
    gc.freeze()
    _log.info("process ready", seconds=round(time.perf_counter() - began, 3), failure=failure)
    return context, ProcessReport(os.getpid(), model, failure)


def call(task: Callable[..., Any], context: Context, *arguments: Any) -> Reply:
    """Run one task; the reply has its stages, too."""
    context.stages = {}
    reply = replace(outcome(task, context, *arguments), stages=context.stages)
    _log.debug("task", task=task.__name__, milliseconds=round(1e3 * reply.seconds, 2))
    _give_memory_back()
    return reply


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
