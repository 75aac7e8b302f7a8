"""Jobs for whole diagnoses: every exporter, no warm-up, and the faults that a test needs."""

from __future__ import annotations

from typing import Any

from rca.lab.simulation import Benign, Fault, SimulationScenario, Telemetry, Workload
from rca.lab.simulation.exporters import EXPORTERS
from rca.window.job import Parallelism

COMPUTE = Workload(forward_seconds=0.25, backward_seconds=0.5, transfer_seconds=0.1, gradient_bytes=4e9)
#: The same job with every phase timed.
WORKLOAD = COMPUTE.model_copy(
    update={
        "data_loading_seconds": 0.02, "host_to_device_seconds": 0.01, "optimizer_seconds": 0.03,
        "launch_seconds": 0.1, "run_queue_share": 0.02,
    }
)  # fmt: skip


def job(*faults: Fault, seed: int, workload: Workload = COMPUTE, **changes: Any) -> SimulationScenario:
    """Sixteen ranks on two nodes, a hundred steps."""
    base: dict[str, Any] = {
        "dialect": "mixed",
        "parallelism": Parallelism(data=16),
        "ranks_per_node": 8,
        "n_steps": 100,
        "benign": Benign(warmup_steps=0),
        "telemetry": every_exporter(),
    }
    return SimulationScenario(**(base | changes), seed=seed, workload=workload, faults=faults)


def every_exporter(**telemetry: Any) -> Telemetry:
    """Telemetry of every exporter, sampled every two seconds."""
    return Telemetry(exporters=tuple(EXPORTERS), interval_seconds=2.0, **telemetry)
