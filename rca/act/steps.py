"""One step of an action: what it does to which object, and how to see whether it is done.

A step names one object for good: a pod by its UID, a process by its start. So a step that is begun twice,
because the agent ended in between, never acts on the successor of its object.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable

from rca.errors import InvalidInput
from rca.frozen import Frozen

#: Names of nodes come with telemetry. To a tool, others are options, lists or patterns.
_NODE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")


class AgentStep(Frozen):
    """One step; it is kept in the journal as JSON."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What it does, as a command where there is one."""

    @property
    def undo(self) -> str | None:
        """The command that undoes it; None where there is none."""
        return None

    @abstractmethod
    def is_done(self) -> bool:
        """Whether its effect is there, by whomever; raises `ToolError` if that cannot be seen."""

    @abstractmethod
    def check(self) -> None:
        """Try it without an effect; raises `ToolError` if it would be refused."""

    @abstractmethod
    def carry_out(self) -> None:
        """Do it; raises `ToolError` if it is refused."""


def nodes_of_job(wanted: Iterable[str], of_job: Iterable[str]) -> list[str]:
    """The nodes of an action, sorted, if the job runs on each of them now.

    Raises
    ------
    InvalidInput
        Names the first one that is no name of a node, or that the job does not run on.
    """
    found, running = sorted(set(wanted)), set(of_job)
    for node in found:
        if not _NODE.fullmatch(node):
            raise InvalidInput(f"{node!r} is not the name of a node")
        if node not in running:
            raise InvalidInput(
                f"the job does not run on {node}", hint="check the names of nodes in its telemetry"
            )
    return found
