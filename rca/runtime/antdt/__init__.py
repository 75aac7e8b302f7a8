"""AntDT: batch sizes that follow the speed of workers, restarts of what persists, and shards of the data.

`Monitor` measures workers, a controller (`NonDedicated` or `Dedicated`) decides. Modules that run inside a
training job need torch and are imported by their own names.
"""

from rca.runtime.antdt.accumulation import Accumulation, Hardware, accumulated
from rca.runtime.antdt.batch_sizes import balanced, equal, step_seconds
from rca.runtime.antdt.controller import ControlAction, Dedicated, NonDedicated
from rca.runtime.antdt.decision import Decision, loss_scale
from rca.runtime.antdt.monitor import Monitor, MonitorReading, StragglerKind
from rca.runtime.antdt.thresholds import SOURCES, Thresholds

__all__ = [
    "SOURCES",
    "Accumulation",
    "ControlAction",
    "Decision",
    "Dedicated",
    "Hardware",
    "Monitor",
    "MonitorReading",
    "NonDedicated",
    "StragglerKind",
    "Thresholds",
    "accumulated",
    "balanced",
    "equal",
    "loss_scale",
    "step_seconds",
]
