"""Steps on processes of this machine: AntDT's KILL_RESTART under torchrun or another elastic launcher.

The launcher starts the workers again when one of them is killed, and goes on with fewer nodes when its own
process ends here.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final, Literal

from rca.act.steps import AgentStep
from rca.act.tools import ToolError
from rca.collect.identity import JOB, RANK
from rca.errors import InvalidInput

#: The end of a process is waited for so long, seconds.
END_SECONDS: Final = 10.0
#: Places of a process's parent and start in ``/proc/PID/stat``, counted behind its name.
_PARENT, _STARTED = 1, 19


class EndProcess(AgentStep):
    """A process ends. It is known by its start as well: a number may be given again."""

    kind: Literal["process.end"] = "process.end"
    pid: int
    started: int
    what: str
    kill: bool = True

    @property
    def text(self) -> str:
        return f"kill -{'KILL' if self.kill else 'TERM'} {self.pid} ({self.what})"

    def is_done(self) -> bool:
        fields = _stat(self.pid)
        return fields is None or int(fields[_STARTED]) != self.started or fields[0] == "Z"

    def check(self) -> None:
        if not os.access(f"/proc/{self.pid}/environ", os.R_OK):
            raise ToolError(f"process {self.pid} is gone or of another user")

    def carry_out(self) -> None:
        # The handle stays that of this process even if the number is given again.
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if not self.is_done():
                signal.pidfd_send_signal(handle, signal.SIGKILL if self.kill else signal.SIGTERM)
        except OSError as error:
            raise ToolError(f"process {self.pid} cannot be ended: {error.strerror}") from None
        finally:
            os.close(handle)
        ends = time.monotonic() + END_SECONDS
        while not self.is_done():
            if time.monotonic() > ends:
                raise ToolError(f"process {self.pid} has not ended in {END_SECONDS:.0f} s")
            time.sleep(0.02)


def worker_of(job_id: str, rank: int) -> EndProcess | None:
    """The process of a rank of a job on this machine, by its environment; None if there is none here.

    Raises
    ------
    InvalidInput
        If several processes are this rank, for example of a run that was left behind.
    """
    found = []
    for entry in Path("/proc").iterdir():
        variables = _environment(entry) if entry.name.isdigit() else {}
        names = {variables.get(name) for name in JOB}
        if job_id in names and variables.get(RANK[0]) == str(rank) and _is_worker(entry):
            found.append(_step(int(entry.name), f"rank {rank} of {job_id}", kill=True))
    if len(found) > 1:
        pids = ", ".join(str(each.pid) for each in found if each is not None)
        raise InvalidInput(
            f"several processes are rank {rank} of {job_id}: {pids}", hint="end those of earlier runs first"
        )
    return found[0] if found else None


def launcher_of(worker: EndProcess) -> EndProcess | None:
    """The launcher that started a worker; None if the worker is gone."""
    fields = _stat(worker.pid)
    return None if fields is None else _step(int(fields[_PARENT]), f"launcher of {worker.what}", kill=False)


def _is_worker(entry: Path) -> bool:
    """Whether no parent has the same rank: a data loader inherits the environment of its worker."""
    fields = _stat(int(entry.name))
    if fields is None or fields[0] == "Z":
        return False
    parent = _environment(entry.parent / fields[_PARENT])
    return parent.get(RANK[0]) is None


def _step(pid: int, what: str, *, kill: bool) -> EndProcess | None:
    fields = _stat(pid)
    return (
        None if fields is None else EndProcess(pid=pid, started=int(fields[_STARTED]), what=what, kill=kill)
    )


def _stat(pid: int) -> list[str] | None:
    """State, parent and further fields of a process; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _environment(entry: Path) -> dict[str, str]:
    try:
        content = (entry / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (each.partition(b"=") for each in content.split(b"\0") if each)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
