"""The dependency graph of one step: operations, edges, and groups that end together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from rca.errors import InvalidTrace
from rca.whatif.optypes import NAMES


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

    @cached_property
    def group_of(self) -> dict[int, Group]:
        """The group of every operation that has one."""
        return {member: group for group in self.groups for member in group.members}

    def find(self, name: str) -> int:
        """Position of the operation called `name`."""
        for position, operation in enumerate(self.operations):
            if operation.name == name:
                return position
        raise KeyError(name)

    def named_edges(self) -> Iterator[tuple[str, str]]:
        """Edges by operation name, in a stable order."""
        for before, after in self.edges:
            yield self.operations[before].name, self.operations[after].name

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

    def to_text(self) -> str:
        """One line per operation: what it waits for, and with whom it ends."""
        lines = []
        for op, before in self.predecessors.items():
            line = (
                f"{self.operations[op].name} <- {', '.join(self.operations[b].name for b in before) or '-'}"
            )
            group = self.group_of.get(op)
            if group is not None:
                peers = [self.operations[m].name for m in group.members if m != op]
                scope = ["all data ranks"] if group.across_data else []
                line += f"  with {', '.join(peers + scope) or 'nobody'}"
            lines.append(line)
        return "\n".join(lines)

    def to_dot(self) -> str:
        """Draw the graph in the DOT language: a cluster per stage, dashed lines inside groups."""
        lines = ["digraph step {", "  rankdir=LR; node [shape=box, fontsize=10];"]
        stages = sorted({operation.stage for operation in self.operations})
        for stage in stages:
            lines.append(f'  subgraph cluster_{stage} {{ label="stage {stage}";')
            held = [op for op in sorted(self.active) if self.operations[op].stage == stage]
            lines += [f'    "{self.operations[op].name}";' for op in held]
            lines.append("  }")
        lines += [f'  "{before}" -> "{after}";' for before, after in self.named_edges()]
        for group in self.groups:
            names = [self.operations[member].name for member in group.members]
            lines += [
                f'  "{a}" -> "{b}" [dir=none, style=dashed, constraint=false];' for a, b in pairwise(names)
            ]
        return "\n".join([*lines, "}"])
