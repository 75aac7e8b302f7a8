"""Windows retold from public incident reports, with the reports' figures and the answers that are right.

The windows share no code with `rca.lab.simulation`. `INCIDENTS` has one entry per report.
"""

from benchmarks.retold_incidents import (
    accelerators,
    bare,
    chronic,
    crashes,
    fabric,
    first_time,
    hangs,
    hosts,
    inputs,
    odd_but_healthy,
    several,
    untimed,
    workloads,
)
from benchmarks.retold_incidents.incident import INCIDENTS, Expected, Incident, Place, Retold

__all__ = [
    "INCIDENTS",
    "Expected",
    "Incident",
    "Place",
    "Retold",
    "accelerators",
    "bare",
    "chronic",
    "crashes",
    "fabric",
    "first_time",
    "hangs",
    "hosts",
    "inputs",
    "odd_but_healthy",
    "several",
    "untimed",
    "workloads",
]
