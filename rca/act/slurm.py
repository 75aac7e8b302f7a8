"""Steps on Slurm, by scontrol: drain a node with a reason, and requeue a job."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from rca.act.steps import AgentStep, nodes_of_job
from rca.act.tools import ToolError, output
from rca.errors import InvalidInput

#: States of a job that can be requeued; others wait already or have ended.
_RUNNING_STATES = ("RUNNING", "SUSPENDED")
#: States of a job that waits to start again.
_QUEUED_STATES = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED")
#: Begins the reason of every node that this product drains.
REASON = "straggler-rca"


class DrainNode(AgentStep):
    """No new job comes to a node. A node that is drained or down already keeps its reason."""

    kind: Literal["slurm.drain"] = "slurm.drain"
    node: str
    incident: str
    cause: str

    @property
    def text(self) -> str:
        return f"scontrol update NodeName={self.node} State=DRAIN Reason={self._reason!r}"

    @property
    def undo(self) -> str:
        return f"scontrol update NodeName={self.node} State=RESUME"

    @property
    def _reason(self) -> str:
        return f"{REASON} {self.cause} incident {self.incident}"

    def is_done(self) -> bool:
        shown = output(["scontrol", "show", "node", self.node])
        if re.findall(r"^NodeName=(\S+)", shown, re.MULTILINE) != [self.node]:
            raise ToolError(f"scontrol does not answer with the node {self.node}")
        states = set(_field(shown, "State").split("+"))
        return bool(states & {"DRAIN", "DRAINED", "DRAINING", "DOWN"})

    def check(self) -> None:
        self.is_done()

    def carry_out(self) -> None:
        update = ["scontrol", "update", f"NodeName={self.node}", "State=DRAIN", f"Reason={self._reason}"]
        output(update)


class RequeueJob(AgentStep):
    """A batch job starts again from its script; only if it has not started again or ended since."""

    kind: Literal["slurm.requeue"] = "slurm.requeue"
    job: str
    restarts: int

    @property
    def text(self) -> str:
        return f"scontrol requeue {self.job}"

    def is_done(self) -> bool:
        state, restarts, _ = _job(self.job)
        return restarts > self.restarts or state in _QUEUED_STATES

    def check(self) -> None:
        _running_nodes(self.job)
        if _field(output(["scontrol", "show", "job", self.job]), "Requeue") == "0":
            raise ToolError(f"job {self.job} may not be requeued", hint="submit it with --requeue")

    def carry_out(self) -> None:
        _running_nodes(self.job)
        output(["scontrol", "requeue", self.job])


def drain_and_requeue(
    wanted: Iterable[str], job: str, incident: str, cause: str, *, drain: bool
) -> tuple[list[AgentStep], int]:
    """The steps that start a job again, without some of its nodes, and the number of all its nodes.

    Parameters
    ----------
    drain : bool
        Also drain these nodes.

    Raises
    ------
    InvalidInput
        If the job does not run, or not on one of them.
    ToolError
    """
    of_job = _running_nodes(job)
    nodes = nodes_of_job(wanted, of_job) if drain else []
    drains = [DrainNode(node=node, incident=incident, cause=cause) for node in nodes]
    return [*drains, RequeueJob(job=job, restarts=_job(job)[1])], len(of_job)


def _running_nodes(job: str) -> list[str]:
    """The nodes that a job runs on."""
    state, _, nodes = _job(job)
    if state not in _RUNNING_STATES:
        raise InvalidInput(f"job {job} does not run: it is {state}")
    return output(["scontrol", "show", "hostnames", nodes]).split()


def _job(job: str) -> tuple[str, int, str]:
    """State, restarts and list of nodes of a job; none of them is a text of its owner."""
    wide = "State:|,RestartCnt:|,NodeList:|"
    lines = output(["squeue", "--noheader", "--states=all", f"--jobs={job}", f"--Format={wide}"]).split("\n")
    found = [line.split("|") for line in lines if line.strip()]
    if len(found) != 1 or len(found[0]) < 3 or not found[0][1].strip().isdigit():
        raise ToolError(f"squeue does not answer with the job {job}")
    state, restarts, nodes = (value.strip() for value in found[0][:3])
    return state, int(restarts), nodes


def _field(shown: str, name: str) -> str:
    """A field at the begin of a line, where no free text stands; a state without marks such as ``*``."""
    found = re.search(rf"^ *{name}=(\S*)", shown, re.MULTILINE)
    if found is None:
        raise ToolError(f"scontrol answers without {name}")
    return found[1].rstrip("*~#!%$@^-")
