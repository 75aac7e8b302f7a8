"""What each cause does to a step, and which signals show it: one row per cause.

Shares of phases and priors were set on the open windows of `data/`, and judged on the others. A cause that
is added to the catalogue needs a row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rca.window.causes import DECIDING, UNKNOWN

#: What a lateness looks like: of some ranks, in turns, of a stage, or of the whole job.
Form = Literal["ranks", "stage", "rotating", "transfer", "job", "pauses", "share", "spikes"]
FORMS: Mapping[str, Form] = {
    "ranks": "ranks",
    "place": "ranks",
    "stage": "stage",
    "rotating": "rotating",
    "transfer": "transfer",
    "job": "job",
    "pace": "job",
    "bound": "job",
    "between": "pauses",
    "untimed": "pauses",
    "share": "share",
    "spikes": "spikes",
}


@dataclass(frozen=True)
class CauseRow:
    """One cause.

    Attributes
    ----------
    prior : float, nats
        Against an open cause.
    phases : mapping of str to float
        Share of its seconds in each phase, ``transfer`` and ``untimed``.
    support : tuple of str
        Resources that go with it, beside those that decide (`rca.window.causes.DECIDING`).
    shown_by : tuple of str
        Resources that show it as those do, and whose normal values exclude nothing.
    forms : frozenset of str
        What a lateness of it looks like.
    own : str
        Phase that shows the cause by itself, because no other cause lengthens it alone. Of two causes of one
        phase, the second is only shown where its resources were not measured.
    """

    prior: float
    phases: Mapping[str, float] = field(default_factory=dict)
    forms: frozenset[Form] = frozenset({"ranks"})
    support: tuple[str, ...] = ()
    own: str = ""
    shown_by: tuple[str, ...] = ()


def _row(
    prior: float,
    phases: Mapping[str, float],
    *forms: Form,
    support: tuple[str, ...] = (),
    own: str = "",
    shown_by: tuple[str, ...] = (),
) -> CauseRow:
    return CauseRow(prior, phases, frozenset(forms), support, own, shown_by)


_COMPUTE = {"forward": 0.4, "backward": 0.5, "optimizer": 0.06, "untimed": 0.02}
#: Causes of a slower device: it lengthens each of its phases alike.
OF_DEVICE = frozenset({"gpu_throttling", "gpu_contention", "gpu_memory_errors"})
#: Resource that explains the signals of a cause, and the share of their strength that is left beside it: a
#: slow clock keeps its device active, and a busy loader fills the run queues.
EXPLAINED_BY: Mapping[str, tuple[str, float]] = {
    "gpu_contention": ("gpu_clock", 0.0),
    "cpu_contention": ("loader_cpu", 0.5),
}
CAUSE_TABLE: Mapping[str, CauseRow] = {
    "gpu_throttling": _row(0.3, _COMPUTE, "ranks", "job", support=("gpu_heat", "stopped")),
    "gpu_contention": _row(-0.2, _COMPUTE | {"host_to_device": 0.04}, "ranks", support=("stopped",)),
    "gpu_memory_errors": _row(-0.7, _COMPUTE, "ranks"),
    "pcie_degradation": _row(
        -0.2,
        {"host_to_device": 0.8, "data_loading": 0.05, "transfer": 0.06, "untimed": 0.04},
        "ranks",
        "transfer",
    ),
    "nvlink_degradation": _row(-0.7, {"transfer": 0.92}, "ranks", "transfer"),
    "nic_degradation": _row(0.2, {"transfer": 0.93}, "ranks", "transfer", "spikes"),
    "network_congestion": _row(-0.2, {"transfer": 0.94}, "transfer", "share"),
    "communication_misconfiguration": _row(-0.9, {"transfer": 0.92}, "ranks", "transfer"),
    "cpu_contention": _row(
        0.2,
        {
            "forward": 0.36,
            "optimizer": 0.14,
            "backward": 0.17,
            "untimed": 0.12,
            "host_to_device": 0.1,
            "data_loading": 0.04,
            "transfer": 0.05,
        },
        "ranks",
        "job",
        "transfer",
        "rotating",
    ),
    "memory_pressure": _row(
        -0.6,
        {
            "forward": 0.26,
            "backward": 0.2,
            "optimizer": 0.1,
            "data_loading": 0.2,
            "untimed": 0.1,
            "host_to_device": 0.06,
            "transfer": 0.03,
        },
        "ranks",
        "job",
        "rotating",
    ),
    "data_loader_stall": _row(
        0.2,
        {"data_loading": 0.95},
        "ranks",
        "rotating",
        "job",
        "share",
        own="data_loading",
        shown_by=("loader_cpu",),
    ),
    "storage_degradation": _row(
        -0.2,
        {"data_loading": 0.9, "checkpoint": 0.01},
        "ranks",
        "rotating",
        "job",
        "share",
        own="data_loading",
    ),
    "runtime_gc": _row(
        -0.1,
        {"gc": 0.55, "forward": 0.33, "untimed": 0.08},
        "ranks",
        "rotating",
        "pauses",
        "job",
        "share",
        "spikes",
        own="gc",
    ),
    "stage_imbalance": _row(1.5, {"forward": 0.42, "backward": 0.55}, "stage"),
    "sequence_length_imbalance": _row(0.0, {"forward": 0.42, "backward": 0.54}, "rotating", "ranks"),
    "checkpoint_stall": _row(
        0.3, {"checkpoint": 0.93, "untimed": 0.03}, "ranks", "job", "share", "spikes", own="checkpoint"
    ),
    "allocator_retries": _row(-0.8, {"forward": 0.5, "backward": 0.44}, "rotating"),
    "recompilation": _row(-2.0, {"forward": 0.75, "backward": 0.2}, "job", "rotating"),
    UNKNOWN: _row(0.0, {}, *FORMS.values()),
}


#: Cause that a phase shows by itself, the first of those that lengthen it alone.
OF_PHASE: Mapping[str, str] = {
    row.own: cause for cause, row in reversed(tuple(CAUSE_TABLE.items())) if row.own
}


def deciding(cause: str) -> tuple[str, ...]:
    """Resources that decide on a cause; the load of a CPU alone does not."""
    return tuple(name for name in DECIDING.get(cause, ()) if name != "cpu_load")


def showing(cause: str) -> tuple[str, ...]:
    """Resources that show a cause where they deviate."""
    return (*deciding(cause), *CAUSE_TABLE[cause].shown_by)


def supporting(cause: str) -> tuple[str, ...]:
    """Resources that go with a cause, and do not decide."""
    row = CAUSE_TABLE[cause]
    return (*row.support, *(("cpu_load",) if cause == "cpu_contention" else ()))
