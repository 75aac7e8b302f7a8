"""The telemetry window: types, validation, encodings, the signal catalogue and signals per rank."""

from rca.telemetry.job import Job, Parallelism, RankPlace, Topology
from rca.telemetry.phases import PhaseArrays
from rca.telemetry.read import read_window
from rca.telemetry.schema import LOAD_COLUMNS, PHASES
from rca.telemetry.window import Window

__all__ = [
    "LOAD_COLUMNS",
    "PHASES",
    "Job",
    "Parallelism",
    "PhaseArrays",
    "RankPlace",
    "Topology",
    "Window",
    "read_window",
]
