"""Synthetic training jobs with labelled faults.

A scenario passes through one chain: workload, resources, durations, forward replay of the operations, phases,
exporters, sampling and loss. Faults change resources only, so their symptoms are consistent.
"""

from __future__ import annotations

from rca.lab.simulation.corpus import corpus_window, generate_corpus
from rca.lab.simulation.engine import LabelledWindow, simulate
from rca.lab.simulation.faults import FAULTS
from rca.lab.simulation.faults.shared import leaf_fault, pcie_switch_fault, rail_fault
from rca.lab.simulation.healthy_job import Benign, Fleet, HarmlessSignal, Workload
from rca.lab.simulation.mechanisms import MECHANISMS, sample_second
from rca.lab.simulation.sampling import sample_scenario
from rca.lab.simulation.scenario import Fault, PhaseAccounting, SimulationScenario, Telemetry
from rca.lab.simulation.wiring import Wiring

__all__ = [
    "FAULTS",
    "MECHANISMS",
    "Benign",
    "Fault",
    "Fleet",
    "HarmlessSignal",
    "LabelledWindow",
    "PhaseAccounting",
    "SimulationScenario",
    "Telemetry",
    "Wiring",
    "Workload",
    "corpus_window",
    "generate_corpus",
    "leaf_fault",
    "pcie_switch_fault",
    "rail_fault",
    "sample_scenario",
    "sample_second",
    "simulate",
]
