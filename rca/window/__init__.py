"""The telemetry window: types, validation, encodings, the signal catalogue, signals per rank."""

from rca.window.job import Job, Parallelism, RankPlace, Topology
from rca.window.schema import LOAD_COLUMNS, PHASES
from rca.window.times.phases import PhaseArrays
from rca.window.window import Window

__all__ = [
    "LOAD_COLUMNS",
    "PHASES",
    "Job",
    "Parallelism",
    "PhaseArrays",
    "RankPlace",
    "Topology",
    "Window",
]
