"""Synthetic training jobs with labelled faults.

A scenario passes through one chain: workload, resources, durations, forward replay of the operations, phases,
exporters, sampling and loss. Faults change resources only, so their symptoms are consistent.
"""

from __future__ import annotations

from rca.simulation.corpus import corpus_window, generate_corpus
from rca.simulation.engine import LabelledWindow, simulate
from rca.simulation.faults import FAULTS
from rca.simulation.faults.shared import leaf_fault, pcie_switch_fault, rail_fault
from rca.simulation.healthy_job import Benign, Fleet, HarmlessSignal, Workload
from rca.simulation.mechanisms import MECHANISMS, sample_second
from rca.simulation.sampling import sample_scenario
from rca.simulation.scenario import Fault, PhaseAccounting, Scenario, Telemetry
from rca.simulation.wiring import Wiring

__all__ = [
    "FAULTS",
    "MECHANISMS",
    "Benign",
    "Fault",
    "Fleet",
    "HarmlessSignal",
    "LabelledWindow",
    "PhaseAccounting",
    "Scenario",
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
