"""Windows retold from public incident reports, with the reports' figures and the answers that are right.

The windows share no code with `rca.lab.simulation`. `INCIDENTS` has one entry per report.
"""

from importlib import import_module

from benchmarks.retold_incidents.incident import INCIDENTS

#: The modules of the reports, in the order of the answers.
KINDS = (
    "accelerators", "bare", "fabric", "chronic", "crashes", "first_time", "hangs", "hosts", "inputs",
    "odd_but_healthy", "several", "untimed", "workloads",
)  # fmt: skip
for _kind in KINDS:
    import_module(f"{__name__}.{_kind}")

__all__ = ["INCIDENTS", "KINDS"]
