"""The program that trains, with as little work as still is work."""

from __future__ import annotations

from typing import Any

from rca.lab.training import bundle_comparison, heads, promotion_gate
from rca.lab.training import mechanism_checks as checks
from rca_api.shell.processes.child_process import Parent
from rca_api.training_runs import child
from rca_api.training_runs.task import Task


def train(parent: Parent, task: Task) -> dict[str, Any]:
    heads.MAX_ROUNDS, heads.PATIENCE = 4, 2
    checks.SIMULATIONS, checks.PERMUTATIONS = 3, 4
    bundle_comparison.LATENCY_WINDOWS, bundle_comparison.LATENCY_REPEATS = 2, 1
    # Two timings on a busy machine are no evidence.
    promotion_gate.LATENCY_SLACK = 100.0
    # Nothing here is to be spared.
    child.NICENESS = 0
    return child.train(parent, task)
