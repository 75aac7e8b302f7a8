"""Each cause lengthens the phases its catalogue entry names, on its victims and not on their peers."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import phase, scenario

from rca.lab.simulation import FAULTS, simulate
from tests.for_each import for_each

# Cause -> own phases that grow on the victims (relative to peers and to the time before).
OWN = {
    "gpu_throttling": ("forward", "backward"),
    "gpu_contention": ("forward", "backward"),
    "gpu_memory_errors": ("forward", "backward"),
    "pcie_degradation": ("host_to_device",),
    "cpu_contention": ("forward", "optimizer"),
    "memory_pressure": ("forward", "backward"),
    "data_loader_stall": ("data_loading",),
    "storage_degradation": ("data_loading",),
    "runtime_gc": ("gc",),
    "stage_imbalance": ("forward", "backward"),
}
SHARED = ("nic_degradation", "network_congestion")


def _growth(window, name, rows):
    values = phase(window, f"{name}_seconds")[rows]
    return values[:, 22:51].mean() - values[:, 5:20].mean()


@for_each("cause", OWN)
def test_own_phases_grow_on_the_affected_ranks_only(cause):
    drawn = scenario(cause)
    window = simulate(drawn).window
    victims = np.isin(np.arange(8), drawn.faults[0].ranks)
    for name in OWN[cause]:
        grown, elsewhere = _growth(window, name, victims), _growth(window, name, ~victims)
        usual = phase(window, f"{name}_seconds")[~victims, 5:20].mean()
        assert grown > 0.15 * usual, name
        assert abs(elsewhere) < 0.2 * grown, name


@for_each("cause", OWN)
def test_peers_wait_for_the_affected_ranks(cause):
    drawn = scenario(cause)
    window = simulate(drawn).window
    victims = np.isin(np.arange(8), drawn.faults[0].ranks)
    assert _growth(window, "communication_wait", ~victims) > 0.004
    # The one that waits least is the suspect.
    waited = phase(window, "communication_wait_seconds")[:, 22:51].mean(axis=1)
    assert waited[victims].mean() < 0.5 * waited[~victims].mean()


@pytest.mark.parametrize("cause", SHARED)
def test_a_slow_link_makes_every_transfer_longer(cause):
    window = simulate(scenario(cause)).window
    transfer = phase(window, "communication_transfer_seconds")
    growth = transfer[:, 22:51].mean(axis=1) / transfer[:, 5:20].mean(axis=1)
    assert growth.min() > 1.3
    assert growth.max() / growth.min() < 1.05
    assert abs(_growth(window, "communication_wait", slice(None))) < 0.003


def test_nvlink_faults_make_transfers_of_their_node_longer_and_others_wait():
    window = simulate(scenario("nvlink_degradation", dialect="mixed")).window
    inside = np.isin(np.arange(8), (2, 3))
    assert _growth(window, "communication_transfer", inside) > 0.05
    assert abs(_growth(window, "communication_transfer", ~inside)) < 0.02
    assert _growth(window, "communication_wait", ~inside) > 0.05


def test_sequence_imbalance_moves_from_rank_to_rank_and_ties_forward_to_backward():
    window = simulate(scenario("sequence_length_imbalance")).window
    forward = phase(window, "forward_seconds")[:, 21:51]
    backward = phase(window, "backward_seconds")[:, 21:51]
    assert min(np.corrcoef(forward[rank], backward[rank])[0, 1] for rank in range(8)) > 0.9
    assert len(set(forward.argmax(axis=0))) >= 5


def test_checkpoints_are_periodic():
    window = simulate(scenario("checkpoint_stall")).window
    due = np.flatnonzero(phase(window, "checkpoint_seconds").max(axis=0) > 0.05)
    assert due.size >= 3
    assert np.unique(np.diff(due)).size == 1
    assert due.min() >= 20
    assert due.max() <= 50


def test_collector_pauses_are_contained_in_the_other_phases():
    window = simulate(scenario("runtime_gc")).window
    parts = ("data_loading", "host_to_device", "forward", "backward", "communication_wait",
             "communication_transfer", "optimizer", "checkpoint")  # fmt: skip
    total = sum(phase(window, f"{name}_seconds") for name in parts)
    np.testing.assert_allclose(total, phase(window, "step_seconds"), rtol=1e-9)


def test_unplanned_collections_hit_different_ranks_at_different_steps():
    drawn = scenario("runtime_gc")
    everywhere = drawn.faults[0].model_copy(update={"variant": "unplanned", "ranks": tuple(range(8))})
    window = simulate(drawn.model_copy(update={"faults": (everywhere,)})).window
    paused = phase(window, "gc_seconds") > 0.01
    assert len(set(paused.argmax(axis=0)[paused.any(axis=0)])) >= 5


SEEN_IN = [
    (cause, dialect)
    for cause, kind in FAULTS.items()
    for dialect in ("cpu_testbed", "mixed")
    # The testbed has no links inside a node.
    if kind.straggler_type and (cause, dialect) != ("nvlink_degradation", "cpu_testbed")
]


@for_each(("cause", "dialect"), SEEN_IN)
def test_every_slow_cause_can_be_seen_in_both_dialects(cause, dialect):
    label = simulate(scenario(cause, dialect=dialect)).label
    assert label["failure_mode"] == "fail_slow"
    assert label["causes"][0]["cause"] == cause
    assert label["impact"]["ratio"] > 1.05
