"""Windows retold from public incident reports, with the reports' figures and the answers that are right.

The windows share no code with `rca.simulation`. `INCIDENTS` has one entry per report.
"""

from benchmarks.retold_incidents import accelerators, fabric
from benchmarks.retold_incidents.incident import INCIDENTS, Expected, Incident, Place, Retold

__all__ = ["INCIDENTS", "Expected", "Incident", "Place", "Retold", "accelerators", "fabric"]
