"""One step of an action: what it does to which object, and how to see whether it is done.

A step names one object for good: a pod by its UID, a process by its start. So a step that is begun twice,
because the agent ended in between, never acts on the successor of its object.
"""

from __future__ import annotations

from abc import abstractmethod

from rca.frozen import Frozen


class AgentStep(Frozen):
    """One step; it is kept in the journal as JSON."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What it does, as a command where there is one."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether its effect is there, by whomever; raises `ToolError` if that cannot be seen."""

    @abstractmethod
    def check(self) -> None:
        """Try it without an effect; raises `ToolError` if it would be refused."""

    @abstractmethod
    def carry_out(self) -> None:
        """Do it; raises `ToolError` if it is refused."""
