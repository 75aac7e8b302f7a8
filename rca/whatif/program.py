"""The dependency graph as a flat program: units in order, ends kept in a few reused slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray
from rca.whatif.graph import DependencyGraph
from rca.whatif.optypes import OPTIMIZER


@dataclass(frozen=True)
class Program:
    """One step's replay, ready for arrays.

    A *unit* is a communication group, or a local operation alone. Without launch delays a unit starts at
    the latest end of everything any member waits for, and each member ends its own duration later.

    Attributes
    ----------
    dep_start, dep_op : ndarray, int32
        Dependencies of unit u: ``dep_op[dep_start[u]:dep_start[u + 1]]``, as operations.
    dep_slot : ndarray, int32
        The same as slots.
    member_start, member_op, member_slot : ndarray, int32
        Members of each unit, and the slot each end is kept in; -1 if nobody waits for it.
    final : ndarray of shape (n_members,), bool
        Whether the end counts as an end of the step.
    across : ndarray of shape (n_units,), bool
        Whether the unit is synchronised over the data ranks.
    n_slots, n_ops : int
    """

    dep_start: npt.NDArray[np.int32]
    dep_op: npt.NDArray[np.int32]
    dep_slot: npt.NDArray[np.int32]
    member_start: npt.NDArray[np.int32]
    member_op: npt.NDArray[np.int32]
    member_slot: npt.NDArray[np.int32]
    final: BoolArray
    across: BoolArray
    n_slots: int
    n_ops: int

    @property
    def n_units(self) -> int:
        return int(self.across.size)


def compile_graph(graph: DependencyGraph) -> Program:
    """Order the units, and give every end a slot for as long as somebody still waits for it.

    A step ends with its latest optimizer; where none was traced, with its latest operation.
    """
    units = graph.units()
    waits = [sorted({b for op in members for b in graph.predecessors[op]}) for members, _ in units]
    last_use = {op: index for index, before in enumerate(waits) for op in before}
    optimizers = {op for op in graph.active if graph.operations[op].optype == OPTIMIZER}
    finals = optimizers or graph.active
    slots = _assign_slots(units, waits, last_use)
    members = [op for held, _ in units for op in held]
    before_all = [op for before in waits for op in before]
    return Program(
        dep_start=_offsets([len(before) for before in waits]),
        dep_op=np.array(before_all, np.int32),
        dep_slot=np.array([slots[op] for op in before_all], np.int32),
        member_start=_offsets([len(held) for held, _ in units]),
        member_op=np.array(members, np.int32),
        member_slot=np.array([slots.get(op, -1) for op in members], np.int32),
        final=np.array([op in finals for op in members], dtype=bool),
        across=np.array([across for _, across in units], dtype=bool),
        n_slots=max(slots.values(), default=0) + 1,
        n_ops=len(graph.operations),
    )


def _assign_slots(
    units: list[tuple[tuple[int, ...], bool]], waits: list[list[int]], last_use: dict[int, int]
) -> dict[int, int]:
    free: list[int] = []
    n_slots = 0
    slots: dict[int, int] = {}
    for index, (members, _) in enumerate(units):
        # Outputs before inputs are freed: a unit with several members reads its inputs more than once.
        for op in members:
            if op not in last_use:
                continue
            if not free:
                free.append(n_slots)
                n_slots += 1
            slots[op] = free.pop()
        free += [slots[op] for op in waits[index] if last_use[op] == index]
    return slots


def _offsets(counts: list[int]) -> npt.NDArray[np.int32]:
    return np.append(0, np.cumsum(counts)).astype(np.int32)
