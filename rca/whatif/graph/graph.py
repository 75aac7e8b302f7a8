"""The dependency graph of one step, and its compiled form for the replay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray
from rca.errors import InvalidTrace
from rca.whatif.optypes import NAMES, OPTIMIZER


@dataclass(frozen=True, order=True)
class Operation:
    """An operation of one model-parallel group. Every data rank runs its own copy."""

    stage: int
    optype: int
    sequence: int

    @property
    def name(self) -> str:
        """``<type>_<sequence>_<stage>``."""
        return f"{NAMES[self.optype]}_{self.sequence}_{self.stage}"


@dataclass(frozen=True)
class Group:
    """Operations that end together: each ends its transfer duration after the latest start of the group.

    Attributes
    ----------
    members : tuple of int
        Positions in `DependencyGraph.operations`.
    across_data : bool
        Whether the copies on all data ranks belong to the group.
    """

    members: tuple[int, ...]
    across_data: bool


@dataclass(frozen=True)
class DependencyGraph:
    """Which operations must end before others may start.

    Attributes
    ----------
    operations : tuple of Operation
        All operations of a step, in the order of the trace's arrays.
    edges : tuple of (int, int)
        Positions (before, after), sorted, without repeats.
    groups : tuple of Group
        Communication groups. An operation outside all groups is local.
    active : frozenset of int
        Operations in the replay. The others are in the trace, but not in the model.
    """

    operations: tuple[Operation, ...]
    edges: tuple[tuple[int, int], ...]
    groups: tuple[Group, ...]
    active: frozenset[int]

    @cached_property
    def predecessors(self) -> dict[int, tuple[int, ...]]:
        """Dependencies of every active operation."""
        before: dict[int, list[int]] = {op: [] for op in sorted(self.active)}
        for first, then in self.edges:
            before[then].append(first)
        return {op: tuple(found) for op, found in before.items()}

    @cached_property
    def active_types(self) -> frozenset[int]:
        """Types of the operations in the replay."""
        return frozenset(self.operations[op].optype for op in self.active)

    def units(self) -> list[tuple[tuple[int, ...], bool]]:
        """Groups and local operations in topological order.

        Returns
        -------
        list of (members, across_data)

        Raises
        ------
        InvalidTrace
            If the dependencies have a cycle. The message names some of its operations.
        """
        units = [(group.members, group.across_data) for group in self.groups]
        grouped = {member for members, _ in units for member in members}
        units += [((op,), False) for op in sorted(self.active - grouped)]
        unit_of = {member: index for index, (members, _) in enumerate(units) for member in members}
        after: list[set[int]] = [set() for _ in units]
        for before, then in self.edges:
            after[unit_of[before]].add(unit_of[then])
        waiting = [0] * len(units)
        for following in after:
            for index in following:
                waiting[index] += 1
        # Depth-first order keeps an end close to its use, so that few ends are alive at a time.
        ready = [index for index in range(len(units) - 1, -1, -1) if waiting[index] == 0]
        ordered = []
        while ready:
            index = ready.pop()
            ordered.append(units[index])
            for following_index in sorted(after[index], reverse=True):
                waiting[following_index] -= 1
                if waiting[following_index] == 0:
                    ready.append(following_index)
        if len(ordered) < len(units):
            stuck = [units[index][0][0] for index in range(len(units)) if waiting[index] > 0][:6]
            named = ", ".join(self.operations[op].name for op in stuck)
            raise InvalidTrace(f"operations depend on each other in a cycle: {named}")
        return ordered


@dataclass(frozen=True)
class Program:
    """The replay of one step as flat arrays.

    A *unit* is a communication group or one local operation. Without launch delays a unit starts at the
    latest end of the dependencies of its members. Each member ends its own duration later. Ends are kept in
    slots, which are reused.

    Attributes
    ----------
    dep_start, dep_slot : ndarray, int32
        Slots of the dependencies of unit u: ``dep_slot[dep_start[u]:dep_start[u + 1]]``.
    member_start, member_op, member_slot : ndarray, int32
        Members of each unit, and the slot of each end; -1 if no operation depends on it.
    final : ndarray of shape (n_members,), bool
        Whether the operation can end the step.
    across : ndarray of shape (n_units,), bool
        Whether the unit is synchronised across data ranks.
    """

    dep_start: npt.NDArray[np.int32]
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
    """Order the units, and give each end a slot until its last use.

    A step ends with its latest optimizer. If no optimizer was traced, it ends with its latest operation.
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
        # Outputs get slots before inputs are freed, because a unit reads its inputs once per member.
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
