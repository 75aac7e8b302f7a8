"""An agent for tests, with the clock of its service, which is set by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from played_cluster import PlayedService

from rca.act.agent import PlanAgent
from rca.act.journal import ActionJournal, Proposal
from rca.act.policy import AgentPolicy

KUBERNETES = {
    "platform": "kubernetes",
    "namespace": "train",
    "selector": "jobset.sigs.k8s.io/jobset-name=llama",
}
SPARE = {"site": {"spare_nodes": 1}}


class Acting:
    """An agent, its journal, and the clock of its service, which is set by hand."""

    def __init__(
        self, folder: Path, service: PlayedService, target: dict[str, Any] = KUBERNETES, **more: Any
    ) -> None:
        given = {"service": "http://rca", "jobs": {service.incident["job_id"]: SPARE | target}}
        self.policy = AgentPolicy.model_validate(given | {"mode": "approve"} | more)
        self.journal = ActionJournal(folder / "policy.sqlite")
        self.service = service

    @property
    def agent(self) -> PlanAgent:
        return PlanAgent(self.policy, self.journal, self.service)  # type: ignore[arg-type]

    @property
    def now(self) -> float:
        """Unix seconds on the clock of the service."""
        return self.service.answered_at

    @now.setter
    def now(self, at: float) -> None:
        self.service.answered_at = at

    def change(self, **policy: Any) -> None:
        """Change the policy, as a person does who edits its file and starts the agent again."""
        self.policy = AgentPolicy.model_validate(self.policy.model_dump() | policy)

    def round(self) -> list[str]:
        return [report.text for report in self.agent.round()]

    def approve(self) -> None:
        [held] = [each for each in self.journal.all() if each.state == "proposed"]
        assert self.journal.change(held.id, ["proposed"], state="approved", by="someone") is not None

    @property
    def newest(self) -> Proposal:
        return self.journal.all()[0]
