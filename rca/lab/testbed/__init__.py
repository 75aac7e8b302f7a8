"""The testbed: a real training job on one machine, with injected faults, captured as labelled windows.

Ranks are real processes that train a small network over gloo. Nodes are network namespaces with a pinned
core. Processes replace GPU hardware; with a real GPU, a rank may compute on it. Every label says what was
real.

The testbed needs the extra ``[testbed]`` (PyTorch, psutil, pyroute2; NVML for GPUs). Namespaces, control
groups and real-time scheduling need root. See ``docs/explanation/simulation-and-testbed.md``.
"""

from __future__ import annotations

from rca.lab.testbed.catalogue import BENIGN, FAULTS, InjectableFault
from rca.lab.testbed.probe import Capabilities, probe
from rca.lab.testbed.scenario import CaptureScenario, TestbedFault, TestbedJob, read_scenario

__all__ = [
    "BENIGN",
    "FAULTS",
    "Capabilities",
    "CaptureScenario",
    "InjectableFault",
    "TestbedFault",
    "TestbedJob",
    "probe",
    "read_scenario",
]
