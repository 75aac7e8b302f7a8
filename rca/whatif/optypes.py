"""Operation types of a trace: those of the public what-if format, and two for rounds of a profiler trace.

A *round* is a rank's own work and the collective after it that all ranks join. Rounds need no knowledge of
forward, backward or pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Statistic = Literal["mean", "median"]


@dataclass(frozen=True)
class OpType:
    """One operation type.

    Attributes
    ----------
    name : str
        Name in a trace.
    statistic : str
        Statistic of its ideal duration: the mean for work, the median for communication.
    merged : str
        Name in reports: send and receive of one direction are merged.
    """

    name: str
    statistic: Statistic
    merged: str


def _table() -> tuple[OpType, ...]:
    rows: tuple[tuple[str, Statistic, str], ...] = (
        ("forward-compute", "mean", ""),
        ("backward-compute", "mean", ""),
        ("forward-send", "median", "forward-pp-comm"),
        ("forward-recv", "median", "forward-pp-comm"),
        ("backward-send", "median", "backward-pp-comm"),
        ("backward-recv", "median", "backward-pp-comm"),
        ("params-all-gather", "median", ""),
        ("grads-reduce-scatter", "median", ""),
        ("separate-grads-all-reduce", "median", ""),
        ("layernorm-grads-all-reduce", "median", ""),
        ("embedding-grads-all-reduce", "median", ""),
        ("optimizer-clip-main-grad", "median", ""),
        ("optimizer", "mean", ""),
        ("gc", "mean", ""),
        ("own-work", "mean", ""),
        ("collective", "median", ""),
    )
    # Codes follow the alphabet because ties in the sort order (start, sequence, type) go by name.
    return tuple(OpType(name, statistic, merged or name) for name, statistic, merged in sorted(rows))


OP_TYPES: tuple[OpType, ...] = _table()
NAMES: tuple[str, ...] = tuple(op.name for op in OP_TYPES)
CODE: dict[str, int] = {name: code for code, name in enumerate(NAMES)}
N_TYPES = len(OP_TYPES)

FORWARD = CODE["forward-compute"]
BACKWARD = CODE["backward-compute"]
FORWARD_SEND = CODE["forward-send"]
FORWARD_RECV = CODE["forward-recv"]
BACKWARD_SEND = CODE["backward-send"]
BACKWARD_RECV = CODE["backward-recv"]
ALL_GATHER = CODE["params-all-gather"]
REDUCE_SCATTER = CODE["grads-reduce-scatter"]
SEPARATE_ALL_REDUCE = CODE["separate-grads-all-reduce"]
LAYERNORM = CODE["layernorm-grads-all-reduce"]
EMBEDDING = CODE["embedding-grads-all-reduce"]
CLIP = CODE["optimizer-clip-main-grad"]
OPTIMIZER = CODE["optimizer"]
GC = CODE["gc"]
OWN_WORK = CODE["own-work"]
COLLECTIVE = CODE["collective"]

COMPUTE = (FORWARD, BACKWARD, OWN_WORK)
ROUND = (OWN_WORK, COLLECTIVE)
"""Types of rounds. A type's rounds differ in their work, so each sequence number has its own ideal time."""
POINT_TO_POINT = (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)
COMPUTE_OF: dict[int, int] = {
    FORWARD_SEND: FORWARD,
    FORWARD_RECV: FORWARD,
    BACKWARD_SEND: BACKWARD,
    BACKWARD_RECV: BACKWARD,
}
"""The compute type that a receive comes before, or a send comes after."""

TAIL = (GC, LAYERNORM, EMBEDDING, CLIP, OPTIMIZER)

IGNORED_NAMES = frozenset({"first-op"})
"""Markers of some producers that are no operations; dropped without a note."""
