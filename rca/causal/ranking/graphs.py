"""A caller's causal graph as index arrays over the columns: parents and reach, with notes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rca.arrays import BoolArray, IntArray
from rca.errors import InvalidInput

if TYPE_CHECKING:
    import networkx

Edges = dict[Hashable, set[Hashable]]


@dataclass(frozen=True)
class ColumnGraph:
    """The causal graph projected on the columns.

    Attributes
    ----------
    parents : tuple of ndarray of int, length n_columns
        Columns that act on each column directly or through nodes without a column. Within a cycle, no column
        is a parent.
    reach : ndarray of bool of shape (n_columns, n_columns)
        ``reach[i, j]``: i is j, or there is a path from i to j, also through nodes without a column.
    known : ndarray of bool of shape (n_columns,)
        Whether the column is a node of the graph.
    notes : tuple of str
        Notes for the caller: nodes without a column, columns without a node, cycles.
    """

    parents: tuple[IntArray, ...]
    reach: BoolArray
    known: BoolArray
    notes: tuple[str, ...]


def read_graph(graph: networkx.DiGraph[Any], names: Sequence[Hashable]) -> ColumnGraph:
    """Project a directed graph, edges from cause to effect, on the columns.

    Raises
    ------
    InvalidInput
        If it is not a directed graph, or if none of its nodes is a column.
    """
    if not (hasattr(graph, "nodes") and hasattr(graph, "edges") and hasattr(graph, "is_directed")):
        raise InvalidInput(
            f"graph must be a networkx.DiGraph, not {type(graph).__name__}",
            hint="build it with networkx.DiGraph([(cause, effect), ...])",
        )
    if not graph.is_directed():
        raise InvalidInput("graph has no directions", hint="use networkx.DiGraph, edges from cause to effect")
    at = {name: index for index, name in enumerate(names)}
    nodes = list(graph.nodes)
    if not any(node in at for node in nodes):
        raise InvalidInput(
            f"no node of the graph is a ranked column; nodes are {_few(nodes)}, columns {_few(names)}",
            hint="name the nodes like the columns; further nodes may have no column",
        )
    effects: Edges = {node: set() for node in nodes}
    for edge in graph.edges:
        if edge[0] != edge[1]:
            effects[edge[0]].add(edge[1])
    reached = {node: _reached(node, effects) for node in nodes}
    reach = np.eye(len(names), dtype=np.bool_)
    for node in nodes:
        if node in at:
            reach[at[node], [at[other] for other in reached[node] if other in at]] = True
    return ColumnGraph(
        parents=_parents(names, at, effects, reach),
        reach=reach,
        known=np.array([name in effects for name in names]),
        notes=tuple(_notes(names, at, nodes, reached)),
    )


def _reached(start: Hashable, effects: Edges, through: Any = None) -> set[Hashable]:
    """Nodes that `start` acts on; paths end at nodes for which `through` is false, if it is given."""
    found: set[Hashable] = set()
    waiting = list(effects[start])
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if through is None or through(node):
            waiting.extend(effects[node])
    return found


def _parents(
    names: Sequence[Hashable], at: dict[Hashable, int], effects: Edges, reach: BoolArray
) -> tuple[IntArray, ...]:
    parents: list[list[int]] = [[] for _ in names]
    for cause, name in enumerate(names):
        if name not in effects:
            continue
        for effect in _reached(name, effects, through=lambda node: node not in at):
            index = at.get(effect)
            # Within a cycle, no column is upstream of another.
            if index is not None and index != cause and not reach[index, cause]:
                parents[index].append(cause)
    return tuple(np.array(found, dtype=np.int64) for found in parents)


def _notes(
    names: Sequence[Hashable],
    at: dict[Hashable, int],
    nodes: Sequence[Hashable],
    reached: dict[Hashable, set[Hashable]],
) -> Iterable[str]:
    hidden = [node for node in nodes if node not in at]
    if hidden:
        yield f"nodes without a usable column, passed through: {_few(hidden)}"
    unknown = [name for name in names if name not in reached]
    if unknown:
        yield f"columns that the graph does not have, judged as without a graph: {_few(unknown)}"
    cyclic = [node for node in nodes if node in reached[node]]
    if cyclic:
        yield f"nodes on cycles, not ordered among themselves: {_few(cyclic)}"


def _few(labels: Sequence[Hashable]) -> str:
    shown = ", ".join(repr(label) for label in list(labels)[:5])
    return shown + (f" and {len(labels) - 5} more" if len(labels) > 5 else "")
