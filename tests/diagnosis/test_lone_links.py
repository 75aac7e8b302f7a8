"""A fault of all collectives that shows on one node's link only belongs to that node."""

from __future__ import annotations

from simulated_jobs import WORKLOAD, job

import rca
from rca.lab.simulation import Fault, simulate
from rca.window.job import Parallelism


def test_a_job_whose_links_one_node_breaks_is_narrowed_to_it() -> None:
    """All ranks wait for the collectives of the node with link errors, from the first step to the last."""
    fault = Fault(cause="nvlink_degradation", ranks=tuple(range(8)), nodes=(0,), severity=1.0, strength=3.0)
    shape = Parallelism(data=4, tensor=4)
    window = simulate(job(fault, seed=6, parallelism=shape, workload=WORKLOAD)).window
    (found,) = rca.diagnose(window).causes
    assert (found.cause, found.ranks) == ("nvlink_degradation", list(range(8)))
