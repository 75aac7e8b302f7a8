"""The process that trains, with as little work as still is work; run as the worker runs its own."""

from __future__ import annotations

from rca.causal import checks
from rca.lab.training import bundle_comparison, heads, promotion_gate
from rca_api.training_runs import child

if __name__ == "__main__":
    heads.MAX_ROUNDS, heads.PATIENCE = 4, 2
    checks.SIMULATIONS, checks.PERMUTATIONS = 3, 4
    bundle_comparison.LATENCY_WINDOWS, bundle_comparison.LATENCY_REPEATS = 2, 1
    # Two timings on a busy machine are no evidence.
    promotion_gate.LATENCY_SLACK = 100.0
    # Nothing here is to be spared.
    child.NICENESS = 0
    child.main()
