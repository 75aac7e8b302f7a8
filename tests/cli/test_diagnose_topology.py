"""`rca diagnose --topology`: files on the command line, and what they are refused for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLOW = Path("data/windows/cpu-contention-node")
TOPOLOGY = Path("data/windows/topology.yaml")
Run = Callable[..., Any]


def test_a_topology_changes_nothing_but_places_where_no_part_is_shared(rca_command: Run) -> None:
    without = json.loads(rca_command("diagnose", SLOW, "--format", "json").out)
    ran = rca_command("diagnose", SLOW, "--topology", TOPOLOGY, "--topology", TOPOLOGY, "--format", "json")
    with_it = json.loads(ran.out)
    for answer in (without, with_it):
        del answer["diagnosis_id"], answer["created_at"]
        places = [each.pop("places") for each in (*answer["causes"], *answer["stragglers"])]
        assert {place["node"] for listed in places for place in listed} == {"node-1"}
    assert ran.err == ""
    assert with_it == without


def test_a_wrong_topology_is_one_error(rca_command: Run, tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=s1 Nodes=gpu-[1-4]\n")
    ran = rca_command("diagnose", SLOW, "--topology", path)
    assert ran.code == 2
    assert "none of the job's nodes" in ran.err
    assert "Traceback" not in ran.err
