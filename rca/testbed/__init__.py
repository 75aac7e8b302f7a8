"""The testbed: a real training job on one machine, faults injected on purpose, captured as labelled windows.

Ranks are real processes that train a small network over gloo; nodes are network namespaces with a pinned
core. What stands in for GPU hardware is a process; where there is a GPU, a rank may compute on it. Every
label says what was real. Needs the extra ``[testbed]`` (PyTorch; NVML for GPUs); root unlocks namespaces,
cgroups and real-time scheduling. See ``docs/explanation/simulation-and-testbed.md``.
"""

from __future__ import annotations

from rca.testbed.catalogue import BENIGN, FAULTS, FaultKind
from rca.testbed.probe import Capabilities, probe
from rca.testbed.scenario import Fault, JobShape, Scenario, read_scenario

__all__ = [
    "BENIGN",
    "FAULTS",
    "Capabilities",
    "Fault",
    "FaultKind",
    "JobShape",
    "Scenario",
    "probe",
    "read_scenario",
]
