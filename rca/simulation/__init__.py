"""Synthetic training jobs with labelled faults.

A scenario is pushed through one chain: workload -> resources (faults act here) -> durations -> forward replay
of the operations -> phases -> exporters -> sampling and loss. Faults know resources only, so their symptoms
stay consistent.
"""

from __future__ import annotations

from rca.simulation.corpus import corpus_window, generate_corpus
from rca.simulation.engine import LabelledWindow, simulate
from rca.simulation.faults import FAULTS
from rca.simulation.healthy_job import Benign, Fleet, HarmlessSignal, Workload
from rca.simulation.sampling import sample_scenario
from rca.simulation.scenario import Booking, Fault, Scenario, Telemetry

__all__ = [
    "FAULTS",
    "Benign",
    "Booking",
    "Fault",
    "Fleet",
    "HarmlessSignal",
    "LabelledWindow",
    "Scenario",
    "Telemetry",
    "Workload",
    "corpus_window",
    "generate_corpus",
    "sample_scenario",
    "simulate",
]
