"""Public captures of injected faults, from a folder in the layout of RCAEval [1]_.

``<folder>/**/<service>_<fault>/<run>/`` with ``data.csv`` (or ``simple_data.csv``), a ``time`` column in
seconds and one column per ``<service>_<metric>``, and ``inject_time.txt``.

References
----------
.. [1] Pham et al., "RCAEval: A Benchmark for Root Cause Analysis of Microservice Systems with Telemetry
   Data", WWW Companion 2025.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks.tabular.cases import Case

TABLES = ("simple_data.csv", "data.csv")
#: Rows on each side of the injection, where there are as many.
WINDOW_ROWS = 600
#: What the metric that a fault acts on is called.
METRIC_OF = {
    "cpu": ("cpu",), "mem": ("mem",), "disk": ("disk", "diskio"), "delay": ("latency",),
    "loss": ("latency", "error"), "socket": ("socket",),
}  # fmt: skip


def read_cases(folder: Path) -> Iterator[Case]:
    """All incidents under a folder, in the order of their paths."""
    for moment in sorted(folder.rglob("inject_time.txt")):
        table = next((moment.parent / name for name in TABLES if (moment.parent / name).exists()), None)
        if table is not None:
            yield read_case(table, float(moment.read_text().split()[0]))


def read_case(table: Path, injected: float) -> Case:
    """One incident: rows before the injection are normal."""
    service, fault = table.parent.parent.name.rsplit("_", 1)
    frame = pd.read_csv(table)
    frame = frame.loc[:, ~frame.columns.duplicated()]
    normal = frame[frame["time"] < injected].tail(WINDOW_ROWS)
    anomalous = frame[frame["time"] >= injected].head(WINDOW_ROWS)
    services = {name: name.rsplit("_", 1)[0] for name in frame.columns if "_" in name}
    hit = METRIC_OF.get(fault, (fault,))
    causes = {
        name for name, of in services.items() if of == service and name.rsplit("_", 1)[1].startswith(hit)
    }
    family = f"{table.parents[2].name}, {fault}"
    return Case(family, normal, anomalous, frozenset(causes or {f"{service}_"}), services)
