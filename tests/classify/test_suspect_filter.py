"""Suspects that are kept: late ranks, faulty links behind slow collectives, and ranks above the threshold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rca.classify import link_beside_straggler
from rca.classify.components import Component
from rca.classify.link_evidence import ComponentCause
from rca.classify.suspect_filter import CERTAIN_WITHOUT_SYMPTOM, PROBABLE, keep_explaining_suspects
from rca.features import RANK_FEATURES, WINDOW_FEATURES
from rca.features.resource_evidence import resource_names
from rca.features.slow_segment import Segment
from rca.telemetry.job import Job, RankPlace

LATE = 0


def features(n_ranks: int = 8) -> Any:
    """Rank 0 is late by its own work, transfer did not grow, and no resource is remarkable."""
    rank = np.zeros((n_ranks, len(RANK_FEATURES)))
    rank[LATE, RANK_FEATURES.index("own_time_excess")] = 0.2
    window = np.zeros(len(WINDOW_FEATURES))
    window[WINDOW_FEATURES.index("communication_measured")] = 2.0
    evidence = SimpleNamespace(versus_peers=np.zeros((n_ranks, len(resource_names()))))
    work = SimpleNamespace(own=np.ones((n_ranks, 4)))
    return SimpleNamespace(rank=rank, window=window, evidence=evidence, work=work)


@pytest.mark.parametrize(
    ("probability", "stays"), [(PROBABLE, True), (PROBABLE - 0.01, False)], ids=["likely", "not quite"]
)
def test_beside_a_late_rank_a_likely_second_fault_stays(probability: float, stays: bool) -> None:
    late, node = Component("rank", (LATE,), 0.99), Component("node", (4, 5, 6, 7), probability)
    assert keep_explaining_suspects([late, node], features()) == ([late, node] if stays else [late])


@pytest.mark.parametrize("shown", [False, True], ids=["nothing", "errors"])
def test_without_timers_a_second_fault_stays_whose_machine_shows_it(shown: bool) -> None:
    untimed = features()
    untimed.window[WINDOW_FEATURES.index("communication_measured")] = 0.0
    untimed.evidence.versus_peers[5, resource_names().index("gpu_memory")] = 8.0 if shown else 0.0
    late, second = Component("rank", (LATE,), 0.99), Component("rank", (5,), PROBABLE)
    assert keep_explaining_suspects([late, second], untimed) == ([late, second] if shown else [late])


@pytest.mark.parametrize(
    ("probability", "stays"),
    [(CERTAIN_WITHOUT_SYMPTOM, True), (CERTAIN_WITHOUT_SYMPTOM - 0.01, False)],
    ids=["certain", "not quite"],
)
def test_beside_a_sick_link_only_the_certain_stay(probability: float, stays: bool) -> None:
    """What a link does to its neighbours makes them look suspicious, too."""
    at_ease = features()
    at_ease.rank[:] = 0.0
    at_ease.evidence.versus_peers[2, resource_names().index("nic")] = 5.0
    link, mate = Component("rank", (2,), 0.6), Component("rank", (3,), probability)
    assert keep_explaining_suspects([mate, link], at_ease) == ([mate, link] if stays else [link])


@pytest.mark.parametrize("own", [False, True], ids=["nothing", "errors of its own"])
def test_beside_a_late_rank_and_a_sick_link_a_second_fault_needs_something_of_its_own(own: bool) -> None:
    crowded = features()
    crowded.window[WINDOW_FEATURES.index("transfer_growth")] = 0.3
    crowded.evidence.versus_peers[2, resource_names().index("nic")] = 5.0
    crowded.evidence.versus_peers[3, resource_names().index("gpu_memory")] = 8.0 if own else 0.0
    late, link = Component("rank", (LATE,), 0.99), Component("rank", (2,), 0.8)
    mate = Component("rank", (3,), PROBABLE)
    assert keep_explaining_suspects([late, link, mate], crowded) == [late, link, *([mate] if own else [])]


@pytest.mark.parametrize("grew", [False, True], ids=["as always", "slower link_beside_straggler"])
def test_where_nobody_is_late_the_likely_ones_are_believed(grew: bool) -> None:
    at_ease = features()
    at_ease.rank[:] = 0.0
    at_ease.window[WINDOW_FEATURES.index("transfer_growth")] = 0.3 if grew else 0.0
    likely, guess = Component("node", (4, 5, 6, 7), PROBABLE), Component("rank", (2,), PROBABLE - 0.01)
    assert keep_explaining_suspects([likely, guess], at_ease) == [likely]
    everybody = Component("job", tuple(range(8)), guess.probability)
    assert keep_explaining_suspects([guess], at_ease) == ([everybody] if grew else [])


@pytest.mark.parametrize(
    ("cause", "left"),
    [("gpu_throttling", True), ("memory_pressure", False), ("nic_degradation", False), ("unknown", False)],
)
def test_slower_collectives_are_no_surprise_beside_some_causes(
    monkeypatch: pytest.MonkeyPatch, cause: str, left: bool
) -> None:
    """Transfers take three times as long in the second half, and that is all by which steps grew."""
    steps = np.arange(40)
    inside = steps >= 20
    transfer = np.where(inside, 0.6, 0.2) * np.ones((4, 1))
    told = SimpleNamespace(
        work=SimpleNamespace(steps=steps, transfer=transfer, job_step=1.0 + transfer[0], step_reference=1.2),
        comparison=SimpleNamespace(segment=SimpleNamespace(whole=False, mask=lambda _n: inside)),
    )
    monkeypatch.setattr(link_beside_straggler, "transfer_grew", lambda _features: True)
    suspect = ComponentCause(Component("rank", (1,), 0.9), cause)
    assert link_beside_straggler.residual_collectives([suspect], told) is left


def beside_a_sick_port(
    queue: float = 5.0, transfer: float = 0.3, past: float = 0.0, slow_from: int = 20
) -> Any:
    """Four nodes of two ranks; the second one's port has a queue, and ten steps' transfers took longer.

    The job's slow stretch is of ten steps, too.
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
        "not sick enough",
        "never slow",
        "hardly slow",
        "slow enough",
        "not so before",
        "hardly worse than before",
    ],
)
def test_a_sick_port_stands_beside_a_straggler(given: dict[str, float], found: bool) -> None:
    late = ComponentCause(Component("rank", (LATE,), 0.99), "gpu_throttling")
    port = link_beside_straggler.faulty_port_of_other_node([late], beside_a_sick_port(**given))
    assert (port.ranks if port else None) == ((2, 3) if found else None)


@pytest.mark.parametrize(
    ("rank", "cause", "found"),
    [
        (LATE, "cpu_contention", True),
        (LATE, "unknown", True),
        (3, "gpu_throttling", False),
        (LATE, "network_congestion", False),
        (LATE, "nvlink_degradation", False),
    ],
)
def test_it_does_so_only_beside_others_that_are_no_links(rank: int, cause: str, found: bool) -> None:
    suspect = ComponentCause(Component("rank", (rank,), 0.99), cause)
    assert (
        link_beside_straggler.faulty_port_of_other_node([suspect], beside_a_sick_port()) is not None
    ) is found


@pytest.mark.parametrize("cause", ["memory_pressure", "cpu_contention", "unknown"])
@pytest.mark.parametrize(("slow_from", "found"), [(5, False), (9, False), (11, True), (20, True)])
def test_what_lengthens_transfers_itself_accounts_for_them(cause: str, slow_from: int, found: bool) -> None:
    suspect = ComponentCause(Component("rank", (LATE,), 0.99), cause)
    beside = beside_a_sick_port(slow_from=slow_from)
    assert (link_beside_straggler.faulty_port_of_other_node([suspect], beside) is not None) is found
    worse = beside_a_sick_port(slow_from=slow_from, past=5.0)
    assert link_beside_straggler.faulty_port_of_other_node([suspect], worse) is not None


def test_ports_that_are_crowded_together_are_nobodys_own() -> None:
    crowded = beside_a_sick_port()
    crowded.evidence.versus_peers[4, resource_names().index("nic")] = 2.0
    assert (
        link_beside_straggler.faulty_port_of_other_node(
            [ComponentCause(Component("rank", (LATE,), 0.99), "runtime_gc")], crowded
        )
        is None
    )
    assert link_beside_straggler.faulty_port_of_other_node([], beside_a_sick_port()) is None
