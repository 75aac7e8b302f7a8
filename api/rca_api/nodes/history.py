"""What other jobs say of nodes, as it is handed to a diagnosis; a process that computes has no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NodeHistory:
    """Odds factors of suspicious nodes, and the jobs whose blames they rest on."""

    odds: Mapping[str, float] = field(default_factory=dict)
    jobs: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def besides(self, job_id: str) -> dict[str, float]:
        """Factors for a job; of a node that it blamed itself there is none: it must not confirm itself."""
        return {node: factor for node, factor in self.odds.items() if job_id not in self.jobs[node]}
