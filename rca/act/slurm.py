"""Steps on Slurm, by scontrol: drain a node with a reason, and requeue a job."""

from __future__ import annotations

from typing import Literal

from rca.act.steps import AgentStep
from rca.act.tools import ToolError, output

#: States of a job that is being requeued, or waits for its nodes.
_ENDS = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "COMPLETING")
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
    def _reason(self) -> str:
        return f"{REASON} {self.cause} incident {self.incident}"

    def is_done(self) -> bool:
        states = set(_fields(["scontrol", "--oneliner", "show", "node", self.node])["State"].split("+"))
        return bool(states & {"DRAIN", "DRAINED", "DRAINING", "DOWN"})

    def check(self) -> None:
        self.is_done()

    def carry_out(self) -> None:
        update = ["scontrol", "update", f"NodeName={self.node}", "State=DRAIN", f"Reason={self._reason}"]
        output(update)


class RequeueJob(AgentStep):
    """A batch job starts again from its script; only if it has not started again since."""

    kind: Literal["slurm.requeue"] = "slurm.requeue"
    job: str
    restarts: int

    @property
    def text(self) -> str:
        return f"scontrol requeue {self.job}"

    @classmethod
    def of(cls, job: str) -> RequeueJob:
        """The next restart of a job; raises `ToolError` if Slurm does not know it."""
        return cls(job=job, restarts=_restarts(job))

    def is_done(self) -> bool:
        state = _fields(_show_job(self.job))["JobState"]
        return _restarts(self.job) > self.restarts or state in _ENDS

    def check(self) -> None:
        fields = _fields(_show_job(self.job))
        if fields.get("Requeue") == "0":
            raise ToolError(f"job {self.job} may not be requeued", hint="submit it with --requeue")

    def carry_out(self) -> None:
        output(["scontrol", "requeue", self.job])


def _show_job(job: str) -> list[str]:
    return ["scontrol", "--oneliner", "show", "job", job]


def _restarts(job: str) -> int:
    text = _fields(_show_job(job)).get("Restarts", "0")
    return int(text) if text.isdigit() else 0


def _fields(command: list[str]) -> dict[str, str]:
    """The fields ``Name=value`` of a line; flags such as ``IDLE*`` lose their mark."""
    pairs = (word.partition("=") for word in output(command).split())
    found = {name: value.rstrip("*~#!%$@^-") for name, mark, value in pairs if mark}
    if not {"State", "JobState"} & found.keys():
        raise ToolError(f"{' '.join(command)}: the answer has no state")
    return found
