"""Exporters write ports and domains behind the names of nodes; jobs do not, or name none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import rca
from rca.features import extract
from rca.lab.simulation import Fault, SimulationScenario, Telemetry, Workload, simulate
from rca.lab.simulation.exporters import EXPORTERS
from rca.window.job import Job, Parallelism, RankPlace
from rca.window.node_names import placed, same_nodes
from rca.window.signals.signal_arrays import SignalArrays
from rca.window.window import Window
from tests.for_each import for_each


@for_each(
    ("names", "nodes", "same"),
    [
        (["a", "b", "c"], ["b", "a"], [1, 0, -1]),
        (["gpu-1:9100", "gpu-1:9400", "gpu-2:9100"], ["gpu-1", "gpu-2"], [0, 0, 1]),
        (["gpu-1", "gpu-2"], ["gpu-1:9100", "gpu-2:9100"], [0, 1]),
        (["w7.cluster.local", "w8.cluster.local:9100"], ["w7", "w8"], [0, 1]),
        (["w7"], ["w7.spot.local"], [0]),
        (["10.0.0.7:9100", "10.0.0.8:9100"], ["10.0.0.8", "10.0.0.7"], [1, 0]),
        # Addresses of one net do not share a host, and one host in two domains is two.
        (["10.0.0.7"], ["10.0.0.8", "10.1.0.7"], [-1]),
        (["w7"], ["w7.east", "w7.west"], [-1]),
    ],
)
def test_names_are_the_same_without_ports_and_domains(
    names: list[str], nodes: list[str], same: list[int]
) -> None:
    assert same_nodes(names, nodes).tolist() == same


def window() -> Window:
    """Two nodes of four ranks; rank 5's GPU is throttled."""
    scenario = SimulationScenario(
        seed=3,
        dialect="mixed",
        parallelism=Parallelism(data=8),
        ranks_per_node=4,
        n_steps=80,
        workload=Workload(
            forward_seconds=0.25, backward_seconds=0.5, transfer_seconds=0.2, gradient_bytes=4e9
        ),
        faults=(Fault(cause="gpu_throttling", ranks=(5,), nodes=(1,), severity=0.8, first_step=30),),
        telemetry=Telemetry(exporters=tuple(EXPORTERS), interval_seconds=2.0),
    )
    return simulate(scenario).window


def renamed(original: Window, suffix: str) -> Window:
    """The same window, the node names of its metrics with a suffix."""
    nodes = [None if name is None else name + suffix for name in original.metrics.column("node").to_pylist()]
    position = original.metrics.column_names.index("node")
    field = original.metrics.schema.field("node")
    column = pa.array(nodes).dictionary_encode().cast(field.type)
    return replace(original, metrics=original.metrics.set_column(position, field, column))


@pytest.mark.parametrize("suffix", [":9100", ".cluster.local", ".cluster.local:9400"])
def test_a_port_or_a_domain_changes_no_feature(suffix: str) -> None:
    original = window()
    np.testing.assert_array_equal(extract(renamed(original, suffix)).rank, extract(original).rank)


def without_places(original: Window) -> Window:
    return replace(original, job=original.job.model_copy(update={"ranks": None}))


def test_ranks_without_a_node_get_the_node_of_their_metrics() -> None:
    original = window()
    found = placed(renamed(without_places(original), ":9400")).job.topology
    assert found.node_names == original.job.topology.node_names
    assert (found.node == original.job.topology.node).all()


def test_a_diagnosis_names_the_node_that_only_metrics_know() -> None:
    original = window()
    (straggler,) = rca.diagnose(without_places(original)).stragglers
    assert (straggler.ranks, straggler.nodes) == ([5], [original.job.topology.node_names[1]])


def test_places_that_the_job_lists_are_not_overruled() -> None:
    original = window()
    assert placed(original) is original
    unplaced = replace(without_places(original), metrics=original.metrics.slice(0, 0))
    assert placed(unplaced) is unplaced


def test_only_ranks_that_are_listed_or_measured_get_a_place() -> None:
    original = without_places(window())
    many = replace(original, job=original.job.model_copy(update={"world_size": 100_000}))
    ranks = placed(many).job.ranks
    assert ranks is not None
    assert len(ranks) == original.job.world_size


def test_unlisted_gpus_belong_to_a_nodes_ranks_in_order() -> None:
    ranks = tuple(RankPlace(rank=rank, node=("a", "b")[rank // 2]) for rank in range(4))
    job = Job(job_id="j", world_size=4, ranks=ranks, start=0.0, end=100.0)
    original = window()
    clocks = {("a", "0"): 1000.0, ("a", "1"): 1100.0, ("b", "0"): 1200.0, ("b", "gpu1"): 1300.0}
    rows = [
        {
            "time": float(at),
            "node": node,
            "rank": None,
            "device": device,
            "name": "DCGM_FI_DEV_SM_CLOCK",
            "value": clock,
        }
        for (node, device), clock in clocks.items()
        for at in range(0, 100, 10)
    ]
    metrics = pa.Table.from_pylist(
        rows,
        schema=pa.schema(
            [
                (f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type)
                for f in original.metrics.schema
            ]
        ),
    ).cast(original.metrics.schema)
    found = SignalArrays.from_window(replace(original, job=job, metrics=metrics), [0.0, 100.0])
    assert found.values["sm_clock_mhz"][:, 0].tolist() == [1000.0, 1100.0, 1200.0, 1300.0]
