"""A fault of all collectives that shows on one node's link only belongs to that node."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from simulated_jobs import WORKLOAD, job

import rca
from rca.classify.link_evidence import Ports
from rca.features import extract
from rca.lab.simulation import Fault, simulate
from rca.window.job import Parallelism
from tests.for_each import for_each


def with_event(window: rca.Window, node: str, message: str) -> rca.Window:
    middle = 0.5 * (window.job.start + window.job.end)
    row = {"time": middle, "node": node, "rank": None, "kind": "link_down", "code": None, "message": message}
    return replace(window, events=pa.Table.from_pylist([row], schema=window.events.schema))


@for_each(
    ("message", "went"),
    [
        ("mlx5_0 port 1 changed state: DOWN, then ACTIVE", True),
        ("eth2: link is not ready", True),
        ("eno2 (management): NIC Link is Down", False),
        ("BMC LAN channel 1: link lost", False),
        ("docker0: port 1(veth3a1) entered disabled state", False),
        ("bond0 (mgmt): link status definitely down", False),
    ],
)
def test_only_ports_that_collectives_go_through_went_down(make_window, message: str, went: bool) -> None:
    window = make_window(8, 60, ranks_per_node=4)
    node = window.job.topology.node_names[1]
    down = extract(with_event(window, node, message)).job_end.link_down
    assert down.tolist() == [went and rank >= 4 for rank in range(8)]


def test_where_ports_are_watched_what_they_show_counts_and_no_event() -> None:
    window = simulate(job(seed=3)).window
    answer = with_event(window, window.job.topology.node_names[1], "eth2: link is not ready")
    down = extract(answer).job_end.link_down
    assert down.any()
    assert not down.all()
    assert not Ports.from_features(extract(answer)).went_down.any()
    blind = replace(answer, metrics=answer.metrics.schema.empty_table())
    assert Ports.from_features(extract(blind)).went_down.tolist() == [False, True]


def test_a_job_whose_links_one_node_breaks_is_narrowed_to_it() -> None:
    """All ranks wait for the collectives of the node with link errors, from the first step to the last."""
    fault = Fault(cause="nvlink_degradation", ranks=tuple(range(8)), nodes=(0,), severity=1.0, strength=3.0)
    shape = Parallelism(data=4, tensor=4)
    window = simulate(job(fault, seed=6, parallelism=shape, workload=WORKLOAD)).window
    (found,) = rca.diagnose(window).causes
    assert (found.cause, found.ranks) == ("nvlink_degradation", list(range(8)))
