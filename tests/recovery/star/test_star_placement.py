"""Placement of workers and parameter servers against brute force."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.errors import InvalidInput
from rca.runtime.star.placement import ClusterNode, PlacedTask, TaskPlacement, place
from tests.for_each import for_each

tasks = st.builds(PlacedTask, st.integers(0, 9).map(float), st.integers(0, 9).map(float), st.integers(0, 3))
nodes = st.builds(
    ClusterNode, st.integers(1, 16).map(float), st.integers(1, 16).map(float), st.integers(0, 6)
)


def loads(tasks: list[PlacedTask], nodes: list[ClusterNode], placed: tuple[int, ...]) -> list[float]:
    """Relative load of each node; infinite if its devices do not suffice."""
    found = []
    for number, node in enumerate(nodes):
        here = [task for task, at in zip(tasks, placed, strict=True) if at == number]
        if sum(task.devices for task in here) > node.devices:
            found.append(np.inf)
            continue
        cpu, bandwidth = sum(task.cpu for task in here), sum(task.bandwidth for task in here)
        found.append(max(cpu / node.cpu, bandwidth / node.bandwidth))
    return found


@settings(max_examples=80)
@given(st.lists(tasks, min_size=1, max_size=5), st.lists(nodes, min_size=1, max_size=3))
def test_no_placement_has_a_smaller_largest_load(tasks: list[PlacedTask], nodes: list[ClusterNode]) -> None:
    every = itertools.product(range(len(nodes)), repeat=len(tasks))
    least = min(max(loads(tasks, nodes, placed)) for placed in every)
    if np.isinf(least):
        with pytest.raises(InvalidInput, match="do not suffice"):
            place(tasks, nodes)
        return
    found = place(tasks, nodes)
    assert found.exact
    assert found.load == pytest.approx(least, rel=1e-9)
    assert loads(tasks, nodes, found.nodes) == pytest.approx(np.maximum(found.cpu, found.bandwidth))


def many(seed: int = 0) -> tuple[list[PlacedTask], list[ClusterNode], TaskPlacement, float]:
    draw = np.random.default_rng(seed)
    tasks = [PlacedTask(*draw.uniform(1, 9, 2), devices=int(draw.integers(0, 3))) for _ in range(300)]
    nodes = [ClusterNode(*draw.uniform(40, 90, 2), devices=16) for _ in range(40)]
    began = time.perf_counter()
    return tasks, nodes, place(tasks, nodes), time.perf_counter() - began


def test_many_tasks_are_placed_evenly_and_in_time() -> None:
    tasks, nodes, found, seconds = many()
    assert max(loads(tasks, nodes, found.nodes)) == pytest.approx(found.load)
    spread = max(
        sum(task.cpu for task in tasks) / sum(node.cpu for node in nodes),
        sum(task.bandwidth for task in tasks) / sum(node.bandwidth for node in nodes),
    )
    in_turn = max(loads(tasks, nodes, tuple(number % 40 for number in range(300))))
    assert spread <= found.load < 1.25 * spread < in_turn
    assert seconds < 5


def test_no_move_or_swap_helps_the_most_loaded_node() -> None:
    tasks, nodes, found, _ = many(1)
    worst = int(np.argmax(np.maximum(found.cpu, found.bandwidth)))
    here = [number for number, node in enumerate(found.nodes) if node == worst]
    for task in here:
        for node in range(len(nodes)):
            moved = list(found.nodes)
            moved[task] = node
            assert max(loads(tasks, nodes, tuple(moved))) >= found.load * (1 - 1e-9)
        for other in range(0, len(tasks), 7):
            swapped = list(found.nodes)
            swapped[task], swapped[other] = swapped[other], swapped[task]
            assert max(loads(tasks, nodes, tuple(swapped))) >= found.load * (1 - 1e-9)


def test_parameter_servers_avoid_the_links_of_workers() -> None:
    workers, servers = [PlacedTask(4, 1)] * 4, [PlacedTask(1, 8, devices=0)] * 2
    found = place(workers + servers, [ClusterNode(16, 10, 4), ClusterNode(16, 10, 0), ClusterNode(16, 10, 0)])
    assert set(found.nodes[:4]) == {0}
    assert sorted(found.nodes[4:]) == [1, 2]
    assert found.overloaded == ()


def test_devices_that_need_packing_are_packed() -> None:
    tasks = [PlacedTask(1, 1, devices) for devices in (3, 3, 2, 2, 2)]
    found = place(tasks, [ClusterNode(8, 8, 6), ClusterNode(8, 8, 6)])
    assert found.nodes[0] == found.nodes[1]
    assert len({*found.nodes[2:]}) == 1


def test_an_unavoidable_overload_is_named() -> None:
    found = place([PlacedTask(6, 1), PlacedTask(3, 1)], [ClusterNode(4, 10, 1), ClusterNode(8, 10, 1)])
    assert (found.nodes, found.overloaded) == ((1, 0), ())
    assert place([PlacedTask(9, 1)], [ClusterNode(4, 10, 1), ClusterNode(8, 10, 1)]).overloaded == (1,)


@for_each(
    ("task", "node", "message"),
    [
        (PlacedTask(-1, 1), ClusterNode(1, 1, 1), "task 0 needs -1 processors"),
        (PlacedTask(1, float("nan")), ClusterNode(1, 1, 1), "bandwidth of nan"),
        (PlacedTask(1, 1, -1), ClusterNode(1, 1, 1), "-1 devices"),
        (PlacedTask(1, 1), ClusterNode(0, 1, 1), "node 0 has 0 processors"),
        (PlacedTask(1, 1), ClusterNode(1, 1, -1), "has -1 devices"),
    ],
)
def test_bad_input_is_refused(task: PlacedTask, node: ClusterNode, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        place([task], [node])
    with pytest.raises(InvalidInput, match="no task"):
        place([], [node])
