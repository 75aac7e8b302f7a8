"""A fault of everybody's collectives whose only trace is one node's link is that node's."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import rca
from rca.features import extract


def with_event(window: rca.Window, node: str, message: str) -> rca.Window:
    middle = 0.5 * (window.job.start + window.job.end)
    row = {"time": middle, "node": node, "rank": None, "kind": "link_down", "code": None, "message": message}
    return replace(window, events=pa.Table.from_pylist([row], schema=window.events.schema))


@pytest.mark.parametrize(
    ("message", "went"),
    [
        ("mlx5_0 port 1 changed state: DOWN, then ACTIVE", True),
        ("eth2: link is not ready", True),
        ("eno2 (management): NIC Link is Down", False),
        ("BMC LAN channel 1: link lost", False),
    ],
)
def test_only_ports_that_collectives_go_through_went_down(make_window, message: str, went: bool) -> None:
    window = make_window(8, 60, ranks_per_node=4)
    node = window.job.topology.node_names[1]
    down = extract(with_event(window, node, message)).endings.link_down
    assert down.tolist() == [went and rank >= 4 for rank in range(8)]
