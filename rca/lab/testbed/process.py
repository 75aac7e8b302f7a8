"""Forked processes of the job, in a namespace, in control groups, on a core; none outlives its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNET = 0x40000000
_FIFO_PRIORITY = 10


@dataclass(frozen=True)
class ProcessPlacement:
    """Where a process runs.

    Attributes
    ----------
    namespace : Path or None
        A network namespace's file.
    groups : sequence of Path
        cgroup directories to join.
    real_time : bool
        SCHED_FIFO where permitted, so that processes that replace hardware do not wait for the core.
    """

    core: int | None = None
    namespace: Path | None = None
    groups: Sequence[Path] = ()
    real_time: bool = False
    nice: int = 0


@dataclass(frozen=True)
class Spawned:
    """A process of the testbed; `rank` is -1 if it belongs to no rank."""

    pid: int
    role: str
    rank: int = -1


@dataclass(frozen=True)
class Exit:
    """The end of a process; `code` is that of a shell (128 + signal)."""

    process: Spawned
    code: int
    monotonic: float

    @property
    def by_signal(self) -> int | None:
        return self.code - 128 if self.code > 128 else None


@contextlib.contextmanager
def in_namespace(namespace: Path | None) -> Iterator[None]:
    """Run the body inside a network namespace; sockets stay in the namespace in which they are opened."""
    if namespace is None:
        yield
        return
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        _set_namespace(namespace)
        yield
    finally:
        _check(_libc().setns(home, _CLONE_NEWNET), "setns")
        os.close(home)


class ProcessTable:
    """All processes of one capture, by pid.

    Parameters
    ----------
    log : Path
        File for the children's output and tracebacks.
    """

    def __init__(self, log: Path) -> None:
        self.alive: dict[int, Spawned] = {}
        self._log = log

    def spawn(
        self,
        role: str,
        target: Callable[[], None],
        placement: ProcessPlacement | None = None,
        *,
        rank: int = -1,
    ) -> Spawned:
        """Fork a process that runs `target` and ends."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._run(role, target, placement or ProcessPlacement())
        process = Spawned(pid, role, rank)
        self.alive[pid] = process
        return process

    def reap(self) -> list[Exit]:
        """Collect the processes that have ended since."""
        exits = []
        for pid, process in list(self.alive.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.alive[pid]
                exits.append(Exit(process, _code(status), time.monotonic()))
        return exits

    def end(self, *processes: Spawned) -> None:
        """Kill processes and wait for them; ended processes are no error."""
        for process in processes:
            send(process, signal.SIGKILL)
        for process in processes:
            if self.alive.pop(process.pid, None) is not None:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, 0)

    def end_all(self) -> None:
        """Kill the remaining processes."""
        self.end(*self.alive.values())

    def _run(self, role: str, target: Callable[[], None], placement: ProcessPlacement) -> NoReturn:
        code = 1
        try:
            detach()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._redirect_output()
            apply_placement(placement)
            target()
            code = 0
        except BaseException as error:
            sys.stderr.write(f"{role} ({os.getpid()}): {''.join(traceback.format_exception(error))}\n")
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _redirect_output(self) -> None:
        """Write the output of libraries to the log instead of the terminal."""
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for standard in (1, 2):
            os.dup2(log, standard)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def apply_placement(placement: ProcessPlacement) -> None:
    """Move the calling process to its groups, namespace and core."""
    for group in placement.groups:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    if placement.namespace is not None:
        _set_namespace(placement.namespace)
    if placement.core is not None:
        os.sched_setaffinity(0, {placement.core})
    if placement.real_time:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIFO_PRIORITY))
    if placement.nice:
        os.nice(placement.nice)


def send(process: Spawned, number: signal.Signals) -> None:
    """Send a signal; do nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


def detach(parent_death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Leave the terminal's session, and get `parent_death_signal` when the parent ends."""
    os.setsid()
    _libc().prctl(_PR_SET_PDEATHSIG, parent_death_signal)


def _set_namespace(namespace: Path) -> None:
    handle = os.open(namespace, os.O_RDONLY)
    try:
        _check(_libc().setns(handle, _CLONE_NEWNET), "setns")
    finally:
        os.close(handle)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
