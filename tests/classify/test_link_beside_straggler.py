"""Slow collectives and faulty ports as a second fault next to a straggler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.classify import link_evidence
from rca.classify.components import Component, ComponentCause
from rca.features.resource_evidence import resource_names
from rca.high_segment import Segment
from rca.window.job import Job, RankPlace
from tests.for_each import for_each

LATE = 0


@pytest.mark.parametrize(
    ("cause", "left"),
    [("gpu_throttling", True), ("memory_pressure", False), ("nic_degradation", False), ("unknown", False)],
)
def test_slower_collectives_are_residual_unless_the_cause_lengthens_transfers(
    monkeypatch: pytest.MonkeyPatch, cause: str, left: bool
) -> None:
    """Transfers take three times as long in the second half; nothing else grows."""
    steps = np.arange(40)
    inside = steps >= 20
    transfer = np.where(inside, 0.6, 0.2) * np.ones((4, 1))
    slower = SimpleNamespace(
        work=SimpleNamespace(steps=steps, transfer=transfer, job_step=1.0 + transfer[0], step_reference=1.2),
        comparison=SimpleNamespace(segment=SimpleNamespace(whole=False, mask=lambda _n: inside)),
    )
    monkeypatch.setattr(link_evidence, "transfer_grew", lambda _features: True)
    suspect = ComponentCause(Component("rank", (1,), 0.9), cause)
    assert link_evidence.residual_collectives([suspect], slower) is left


def with_faulty_port(
    queue: float = 5.0, transfer: float = 0.3, past: float = 0.0, slow_from: int = 20
) -> Any:
    """Four nodes of two ranks; the port of the second has a queue, and transfers are longer in ten steps.

    The job's slow segment has ten steps as well.
    """
    nic = resource_names().index("nic")
    beside, since = (np.zeros((8, len(resource_names()))) for _ in range(2))
    beside[2:4, nic], since[2:4, nic] = queue, past
    steps = np.arange(40)
    slow = (0.2 + np.where((steps >= 5) & (steps < 15), transfer, 0.0)) * np.ones((8, 1))
    places = tuple(RankPlace(rank=rank, node=f"n{rank // 2}") for rank in range(8))
    return SimpleNamespace(
        topology=Job(job_id="j", world_size=8, ranks=places, start=0.0, end=1.0).topology,
        evidence=SimpleNamespace(versus_peers=beside, versus_past=since),
        job_end=SimpleNamespace(link_down=np.zeros(8, dtype=bool)),
        work=SimpleNamespace(transfer=slow, step_reference=1.0),
        comparison=SimpleNamespace(segment=Segment(slow_from, slow_from + 9, 0.3, 20.0, False)),
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, True),
        ({"queue": 3.9}, False),
        ({"transfer": 0.0}, False),
        ({"transfer": 0.09}, False),
        ({"transfer": 0.11}, True),
        ({"transfer": 0.0, "past": 5.0}, True),
        ({"transfer": 0.0, "past": 3.9}, False),
    ],
    ids=[
        "slow for a while",
        "queue too short",
        "transfers never slow",
        "hardly slow",
        "slow enough",
        "not so before",
        "hardly worse than before",
    ],
)
def test_a_faulty_port_of_another_node_is_a_second_fault(given: dict[str, float], found: bool) -> None:
    late = ComponentCause(Component("rank", (LATE,), 0.99), "gpu_throttling")
    port = link_evidence.faulty_port_of_other_node([late], with_faulty_port(**given))
    assert (port.ranks if port else None) == ((2, 3) if found else None)


@for_each(
    ("rank", "cause", "found"),
    [
        (LATE, "cpu_contention", True),
        (LATE, "unknown", True),
        (3, "gpu_throttling", False),
        (LATE, "network_congestion", False),
        (LATE, "nvlink_degradation", False),
    ],
)
def test_a_faulty_port_is_no_second_fault_next_to_a_link_fault(rank: int, cause: str, found: bool) -> None:
    suspect = ComponentCause(Component("rank", (rank,), 0.99), cause)
    assert (link_evidence.faulty_port_of_other_node([suspect], with_faulty_port()) is not None) is found


@for_each("cause", ["memory_pressure", "cpu_contention", "unknown"])
@for_each(("slow_from", "found"), [(5, False), (9, False), (11, True), (20, True)])
def test_a_cause_that_lengthens_transfers_explains_them(cause: str, slow_from: int, found: bool) -> None:
    suspect = ComponentCause(Component("rank", (LATE,), 0.99), cause)
    beside = with_faulty_port(slow_from=slow_from)
    assert (link_evidence.faulty_port_of_other_node([suspect], beside) is not None) is found
    worse = with_faulty_port(slow_from=slow_from, past=5.0)
    assert link_evidence.faulty_port_of_other_node([suspect], worse) is not None


def test_one_of_several_crowded_ports_is_no_second_fault() -> None:
    crowded = with_faulty_port()
    crowded.evidence.versus_peers[4, resource_names().index("nic")] = 2.0
    assert (
        link_evidence.faulty_port_of_other_node(
            [ComponentCause(Component("rank", (LATE,), 0.99), "runtime_gc")], crowded
        )
        is None
    )
    assert link_evidence.faulty_port_of_other_node([], with_faulty_port()) is None
