"""Steps on processes of this machine: AntDT's KILL_RESTART under torchrun or another elastic launcher.

The launcher starts the workers again when one of them is killed, and goes on with fewer nodes when its own
process ends here.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from rca.act.steps import AgentStep
from rca.act.tools import ToolError
from rca.collect.identity import JOB, RANK
from rca.errors import InvalidInput

#: The end of a process is waited for so long, seconds.
END_SECONDS: Final = 10.0
#: Names of elastic launchers in their command line.
_LAUNCHERS: Final = ("torchrun", "torch.distributed.run", "torch/distributed/run.py")
#: Places of a process's parent and start in ``/proc/PID/stat``, counted behind its name.
_PARENT, _STARTED = 1, 19


class EndProcess(AgentStep):
    """A process ends, and with a kill its descendants before it.

    It is known by its machine and its start as well: a number may be given again.
    """

    kind: Literal["process.end"] = "process.end"
    machine: str
    pid: int
    started: int
    what: str
    kill: bool = True

    @property
    def text(self) -> str:
        return f"kill -{'KILL' if self.kill else 'TERM'} {self.pid} ({self.what})"

    def is_done(self) -> bool:
        if self.machine != this_machine():
            raise ToolError(f"process {self.pid} is of another machine, or of a boot before")
        fields = _stat(self.pid)
        return fields is None or int(fields[_STARTED]) != self.started or fields[0] == "Z"

    def check(self) -> None:
        if not self.is_done() and not os.access(f"/proc/{self.pid}/environ", os.R_OK):
            raise ToolError(f"process {self.pid} is of another user")

    def carry_out(self) -> None:
        if self.kill and not self.is_done():
            # A wrapper that is killed would leave the training behind. One whose training ends may end with
            # the code of a success before it is killed, and its launcher would not start it again.
            _signal(self.pid, signal.SIGSTOP, lambda: not self.is_done())
            for pid in reversed(_descendants(self.pid)):
                _signal(pid, signal.SIGKILL, lambda: True)
        _signal(self.pid, signal.SIGKILL if self.kill else signal.SIGTERM, lambda: not self.is_done())
        ends = time.monotonic() + END_SECONDS
        while not self.is_done():
            if time.monotonic() > ends:
                raise ToolError(f"process {self.pid} has not ended in {END_SECONDS:.0f} s")
            time.sleep(0.02)


def this_machine() -> str:
    """The boot of this machine and the namespace of its process numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _signal(pid: int, number: int, is_meant: Callable[[], bool]) -> None:
    """Signal a process that is still the meant one when its handle is open."""
    try:
        # The handle stays that of this process even if the number is given again.
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if is_meant():
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    except OSError as error:
        raise ToolError(f"process {pid} cannot be ended: {error.strerror}") from None
    finally:
        os.close(handle)


def _descendants(pid: int) -> list[int]:
    """Children of a process, their children, and so on."""
    parents = _parents()
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def worker_of(job_id: str, rank: int) -> EndProcess | None:
    """The process of a rank of a job on this machine, by its environment; None if there is none here.

    Raises
    ------
    InvalidInput
        If several processes are this rank, for example of a run that was left behind.
    """
    found = []
    for pid in _parents():
        variables = _environment(pid)
        names = {variables.get(name) for name in JOB}
        if job_id in names and variables.get(RANK[0]) == str(rank) and _is_worker(pid):
            found.append(_step(pid, f"rank {rank} of {job_id}", kill=True))
    if len(found) > 1:
        pids = ", ".join(str(each.pid) for each in found if each is not None)
        raise InvalidInput(
            f"several processes are rank {rank} of {job_id}: {pids}", hint="end those of earlier runs first"
        )
    return found[0] if found else None


def launcher_of(job_id: str, worker: EndProcess) -> EndProcess:
    """The elastic launcher that started a worker.

    Raises
    ------
    InvalidInput
        If its parent is none, or has children that are no workers of the job.
    """
    fields = _stat(worker.pid)
    parent = 0 if fields is None else int(fields[_PARENT])
    step = _step(parent, f"launcher of {worker.what}", kill=False)
    words = _words(parent, "cmdline")
    if step is None or parent <= 1 or not any(word.endswith(_LAUNCHERS) for word in words[:4]):
        raise InvalidInput(f"{worker.what} was not started by torchrun", hint="end its launcher by hand")
    for child in _children(parent):
        variables = _environment(child)
        if job_id not in {variables.get(name) for name in JOB} or RANK[0] not in variables:
            raise InvalidInput(f"process {parent} has other children than workers of {job_id}: {child}")
    return step


def processes_of(job_id: str, ranks: Sequence[int], *, takes_out: bool) -> tuple[list[AgentStep], int]:
    """The worker of one of some ranks on this machine, or their launcher if the machine is to leave the job.

    Returns
    -------
    steps : list of AgentStep
    n_nodes : int
        Machines of the job.

    Raises
    ------
    InvalidInput
        If none of them runs here, or its launcher must not be ended.
    """
    workers = [worker for rank in ranks if (worker := worker_of(job_id, rank)) is not None]
    if not workers:
        named = ", ".join(map(str, ranks)) or "none is named"
        raise InvalidInput(f"no worker of these ranks runs on this machine: {named}")
    n_nodes = _nodes_of(workers[0])
    if not takes_out:
        return [workers[0]], n_nodes
    launchers = {found.pid: found for worker in workers if (found := launcher_of(job_id, worker))}
    return list(launchers.values()), n_nodes


def _nodes_of(worker: EndProcess) -> int:
    """The number of machines of a worker's job, as torchrun counts them."""
    text = _environment(worker.pid).get("GROUP_WORLD_SIZE", "")
    return int(text) if text.isdigit() else 1


def _is_worker(pid: int) -> bool:
    """Whether no parent has the same rank: a data loader inherits the environment of its worker."""
    fields = _stat(pid)
    if fields is None or fields[0] == "Z":
        return False
    return _environment(int(fields[_PARENT])).get(RANK[0]) is None


def _step(pid: int, what: str, *, kill: bool) -> EndProcess | None:
    fields = _stat(pid)
    if fields is None:
        return None
    return EndProcess(machine=this_machine(), pid=pid, started=int(fields[_STARTED]), what=what, kill=kill)


def _stat(pid: int) -> list[str] | None:
    """State, parent and further fields of a process; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _children(pid: int) -> list[int]:
    return [each for each, parent in _parents().items() if parent == pid]


def _parents() -> dict[int, int]:
    """The parent of every process."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: int(fields[_PARENT]) for pid in numbers if (fields := _stat(pid)) is not None}


def _environment(pid: int) -> dict[str, str]:
    pairs = (word.partition("=") for word in _words(pid, "environ"))
    return {name: value for name, _, value in pairs}


def _words(pid: int, name: str) -> list[str]:
    """The words of a file of a process that are parted by zeros; none if it is gone or of another user."""
    try:
        content = Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in content.split(b"\0") if word]
