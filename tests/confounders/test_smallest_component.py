"""Confounder 4: a node's fault shows on all its ranks, a switch's on all its nodes; name what covers it."""

from __future__ import annotations

import numpy as np
import pytest
from hand_made import KERNELS, Exported, believed, blamed, components, exported, names_of

import rca
from tests.for_each import for_each


@for_each(("n_ranks", "per_node", "node"), [(8, 2, 1), (16, 8, 1), (64, 8, 5)])
@for_each("seconds", [0.012, 0.04])
def test_a_nodes_fault_names_the_node_not_its_ranks(
    make_window, n_ranks: int, per_node: int, node: int, seconds: float
) -> None:
    ranks = tuple(range(node * per_node, (node + 1) * per_node))
    window = make_window(
        n_ranks, late=dict.fromkeys(ranks, seconds), steps=slice(12, 30), ranks_per_node=per_node
    )
    diagnosis = rca.diagnose(window)
    if (n_ranks, seconds) == (16, 0.012) and diagnosis.failure_mode == "healthy":
        # A tenth of a step on half of the job: too little to alarm, too much to acquit.
        assert diagnosis.abstained
        assert diagnosis.failure_mode_probability["fail_slow"] > 0.8
        return
    assert components(diagnosis) == {("node", ranks)}
    assert diagnosis.stragglers[0].nodes == [f"node-{node}"]


def test_a_contended_host_is_one_cause_not_one_per_rank(make_window) -> None:
    window = make_window(16, late=dict.fromkeys(range(8, 16), 0.04), steps=slice(12, 30), ranks_per_node=8)
    waiting = np.full((2, 40), 0.02)
    waiting[1, 12:30] = 0.7
    window = exported(
        window,
        Exported("node_pressure_cpu_waiting_seconds_total", waiting, scope="node", counter=True),
        Exported("process_schedstat_waiting_seconds_total", np.repeat(waiting, 8, axis=0), counter=True),
    )
    diagnosis = rca.diagnose(window)
    assert believed(diagnosis) == {("cpu_contention", tuple(range(8, 16)))}
    assert components(diagnosis) == {("node", tuple(range(8, 16)))}


def test_one_slow_rank_of_a_node_does_not_condemn_the_node(make_window) -> None:
    window = make_window(16, late={9: 0.04}, ranks_per_node=8)
    assert components(rca.diagnose(window)) == {("rank", (9,))}


@pytest.mark.parametrize(("n_ranks", "per_node"), [(8, 2), (64, 8)])
def test_a_slow_link_names_its_node_although_every_collective_is_slow(
    make_window, n_ranks: int, per_node: int
) -> None:
    """All ranks' transfers are alike in a ring; only the counters of node 1's port moved."""
    window = make_window(n_ranks, transfer=slow_collectives(), ranks_per_node=per_node)
    stalls = np.full((n_ranks // per_node, 40), 1e4)
    stalls[1, 12:30] = 4e7
    diagnosis = rca.diagnose(
        exported(
            window, Exported("node_infiniband_port_transmit_wait_total", stalls, scope="node", counter=True)
        )
    )
    assert components(diagnosis) == {("node", tuple(range(per_node, 2 * per_node)))}
    assert names_of(believed(diagnosis)) == {"nic_degradation"}


@pytest.mark.parametrize(("n_ranks", "per_node"), [(8, 2), (64, 8)])
def test_a_congested_fabric_has_no_single_culprit(make_window, n_ranks: int, per_node: int) -> None:
    """Every port waits to send and receives congestion notices: the fault lies between the nodes."""
    window = make_window(n_ranks, transfer=slow_collectives(), ranks_per_node=per_node)
    diagnosis = rca.diagnose(
        exported(
            window,
            on_every_node("np_cnp_sent", 20, 2e4),
            on_every_node("node_infiniband_port_transmit_wait_total", 1e4, 3e7),
        )
    )
    assert blamed(diagnosis) == set(range(n_ranks))
    assert "network_congestion" in names_of(believed(diagnosis))


@pytest.mark.parametrize(("n_ranks", "per_node"), [(8, 2), (16, 4), (64, 8)])
def test_a_counter_that_rises_everywhere_is_believed_and_one_that_stays_is_not(
    make_window, n_ranks: int, per_node: int
) -> None:
    """More telemetry must not lower the belief in what it shows."""
    window = make_window(n_ranks, transfer=slow_collectives(), ranks_per_node=per_node)

    def belief(answer: rca.Window) -> float:
        causes = rca.diagnose(answer).causes
        return max((each.probability for each in causes if each.cause == "network_congestion"), default=0.0)

    waits = "node_infiniband_port_transmit_wait_total"
    risen = belief(exported(window, on_every_node(waits, 1e4, 3e7)))
    still = belief(exported(window, on_every_node(waits, 1e4, 1e4)))
    assert risen > 0.4
    assert risen > belief(window) > still - 0.05


def test_congestion_notifications_alone_tell_a_congested_fabric(make_window) -> None:
    window = make_window(64, transfer=slow_collectives(), ranks_per_node=8)
    diagnosis = rca.diagnose(exported(window, on_every_node("np_cnp_sent", 20, 2e4)))
    assert blamed(diagnosis) in (set(), set(range(64)))
    assert names_of(believed(diagnosis)) <= {"network_congestion"}


@pytest.mark.parametrize(("n_ranks", "per_node"), [(8, 2), (16, 8), (64, 8)])
def test_slow_collectives_alone_name_no_single_rank(make_window, n_ranks: int, per_node: int) -> None:
    """All transfers are alike and no counter tells the ranks apart: any one name would be a guess."""
    diagnosis = rca.diagnose(make_window(n_ranks, transfer=slow_collectives(), ranks_per_node=per_node))
    assert blamed(diagnosis) in (set(), set(range(n_ranks)))


def test_two_sick_ranks_of_one_node_with_different_symptoms_are_two_components(make_window) -> None:
    """One rank's loader and its neighbour's GPU: the node has nothing to do with it."""
    loader = make_window(16, late={8: 0.05}, phase="data_loading_seconds", ranks_per_node=2)
    both = _also_late(loader, make_window(16, late={9: 0.05}, phase=KERNELS, ranks_per_node=2))
    assert components(rca.diagnose(both)) == {("rank", (8,)), ("rank", (9,))}


def slow_collectives() -> np.ndarray:
    """Seconds of transfer per step: 40 ms, and 100 ms in the middle."""
    seconds = np.full(40, 0.04)
    seconds[12:30] = 0.1
    return seconds


def on_every_node(name: str, quiet: float, busy: float) -> Exported:
    """A counter that rises faster on all ranks at once while the collectives are slow."""
    rate = np.full((1, 40), quiet)
    rate[:, 12:30] = busy
    return Exported(name, rate, scope="node", counter=True)


def _also_late(first: rca.Window, second: rca.Window) -> rca.Window:
    """Rows of rank 8 as in the first window, of rank 9 as in the second; both are equally late."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rank = first.steps["rank"]
    other = pc.equal(second.steps["rank"], 9)
    columns = {
        name: pc.if_else(pc.equal(rank, 9), second.steps[name], first.steps[name])
        for name in first.steps.column_names
    }
    assert other.to_numpy().any()
    return rca.Window.from_tables(first.job, pa.table(columns))
