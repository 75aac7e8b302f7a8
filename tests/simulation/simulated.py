"""Small scenarios with one strong fault, and how to read what came out."""

from __future__ import annotations

import numpy as np

from rca.lab.simulation import FAULTS, Fault, SimulationScenario, Telemetry, Workload
from rca.lab.simulation.exporters import EXPORTERS
from rca.window.job import Parallelism

TESTBED = ("cpu", "pressure", "memory", "disk", "network", "tcp", "qdisc", "process", "container", "python")


def scenario(cause: str | None = None, *, dialect: str = "cpu_testbed", **changes) -> SimulationScenario:
    pipeline = 2 if cause == "stage_imbalance" else 1
    base: dict = {
        "seed": 11,
        "dialect": dialect,
        "parallelism": Parallelism(data=8 // pipeline, pipeline=pipeline),
        "telemetry": Telemetry(exporters=tuple(EXPORTERS) if dialect == "mixed" else TESTBED),
    }
    if dialect == "mixed":
        base["workload"] = cluster_workload()
    if cause is not None:
        base["faults"] = (fault(cause),)
    return SimulationScenario(**(base | changes))


def fault(cause: str, **changes) -> Fault:
    victims = {
        "rank": ((2,), (1,)),
        "node": ((2, 3), (1,)),
        "fabric": (tuple(range(6)), (0, 1, 2)),
        "stage": ((4, 5, 6, 7), ()),
        "job": (tuple(range(8)), (0, 1, 2, 3)),
    }
    ranks, nodes = victims[FAULTS[cause].reach]
    last = None if FAULTS[cause].straggler_type is None else 50
    held = {"ranks": ranks, "nodes": nodes, "severity": 0.8, "first_step": 20, "last_step": last}
    return Fault(cause=cause, **(held | changes))


def cluster_workload() -> Workload:
    return Workload(
        data_loading_seconds=0.004,
        host_to_device_seconds=0.01,
        forward_seconds=0.25,
        backward_seconds=0.5,
        transfer_seconds=0.2,
        optimizer_seconds=0.03,
        launch_seconds=0.12,
        host_coupling=0.03,
        run_queue_share=0.03,
        intra_node_share=0.3,
        gradient_bytes=4e9,
    )


def phase(window, name: str) -> np.ndarray:
    """One phase as (n_ranks, n_steps)."""
    from rca.window.times.phases import PhaseArrays

    return PhaseArrays.from_window(window).phase(name)


def change(window, name: str, scope: str, first: float, last: float) -> dict:
    """Mean rate (counters) or level (gauges) per entity between two times, summed over devices."""
    frame = window.metrics.filter(_is(window.metrics, name)).to_pandas()
    frame["entity"] = frame["rank"] if scope == "rank" else frame["node"].astype(object)
    frame["device"] = frame["device"].astype(object).fillna("-")
    frame = frame[(frame.time >= first) & (frame.time <= last)]
    assert len(frame), f"no samples of {name}"
    found: dict = {}
    for (entity, _device), part in frame.groupby(["entity", "device"]):
        part = part.sort_values("time")
        found[entity] = found.get(entity, 0.0) + _mean(name, part)
    return found


def _mean(name: str, part) -> float:
    if name.startswith("DCGM_FI_DEV_") and not name.endswith(("TOTAL", "COUNTER", "VIOLATION")):
        return float(part.value.mean())
    if name in {"node_qdisc_backlog", "node_tcp_rtt_seconds"} or name.startswith("DCGM_FI_PROF"):
        return float(part.value.mean())
    return float((part.value.iloc[-1] - part.value.iloc[0]) / (part.time.iloc[-1] - part.time.iloc[0]))


def _is(table, name: str):
    import pyarrow.compute as pc

    return pc.equal(pc.cast(table.column("name"), "string"), name)
