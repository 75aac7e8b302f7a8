"""The dependency graph of one step: operations, edges, and groups that end together."""

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
    """An operation of one model-parallel group; every data rank runs its own copy."""

    stage: int
    optype: int
    sequence: int

    @property
    def name(self) -> str:
        """``<type>_<sequence>_<stage>``."""
        return f"{NAMES[self.optype]}_{self.sequence}_{self.stage}"


@dataclass(frozen=True)
class Group:
    """Operations that end together, each its transfer after the last of them has started.

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
    """What must end before what may start.

    Attributes
    ----------
    operations : tuple of Operation
        All operations of a step, in the order of the trace's arrays.
    edges : tuple of (int, int)
        Positions (before, after), sorted, without repeats.
    groups : tuple of Group
        Communication groups; an operation in none of them is local.
    active : frozenset of int
        Operations the replay covers; the rest is in the trace but not in the model.
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
        """Operation types the replay covers."""
        return frozenset(self.operations[op].optype for op in self.active)

    def units(self) -> list[tuple[tuple[int, ...], bool]]:
        """Order groups and local operations so that everything they wait for comes first.

        Returns
        -------
        list of (members, across_data)

        Raises
        ------
        InvalidTrace
            If operations wait for each other in a circle, naming some of them.
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
        # Depth first keeps an operation's end close to its use, so that few ends live at a time.
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
            raise InvalidTrace(f"operations wait for each other in a circle: {named}")
        return ordered


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
