"""Times, ranks and nodes of the events of logs that follow from other lines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rca.sources.logs.failure_tables import FailureTable, LogEvent, error_of_table
from rca.sources.logs.log_events import LogEvents
from rca.sources.logs.nccl_places import NcclPlaces
from rca.sources.logs.text_lines import LineClock

#: The largest local rank that may stand for a rank where nothing shows a second node.
MAX_LOCAL_RANK = 7
#: So many processes must name one node as lost.
MIN_REPORTERS = 2
_FIRST_GPU = ("0", 0)
_NUMBERED = frozenset({"process_exit", "process_error", "device_error"})


def place(
    events: LogEvents,
    clock: LineClock,
    ranks: Collection[int],
    world_size: int,
    notes: list[str],
    *,
    tasks_are_ranks: bool = False,
    places: NcclPlaces,
    agents: Mapping[Path, Sequence[int]],
    waits: bool = False,
) -> None:
    """Set the times of all events, and the ranks that follow from other lines.

    Parameters
    ----------
    clock : LineClock
        It has seen all lines.
    ranks : collection of int
        Ranks that lines name.
    world_size : int
        As the logs state it; 0 if they do not.
    tasks_are_ranks : bool
        Numbers of a launcher's tasks are ranks. Without other ranks they are taken for such.
    places : NcclPlaces
        The ranks of GPUs that kernels name.
    agents : mapping of Path to sequence of int
        The ranks of the processes of a node, by the file of its launcher.
    waits : bool
        Ranks are known that waited for others: then weak events do not count.
    """
    alone = not events.tell_failure and not waits
    if alone:
        events.rows += events.weak
    tables = events.tables.tables
    roots = [each.rows[-1] for each in tables if each.rooted]
    known = {row.pid for rows in events.tables.by_pid.values() for row in rows}
    one_node = max([world_size - 1, *ranks, *(row.rank or 0 for row in roots)]) <= MAX_LOCAL_RANK
    one_node = one_node and len({row.node for row in events.rows if row.node is not None}) <= 1
    one_node = one_node and len({row.stamp.path for row in events.rows if row.local is not None}) <= 1
    # A process that sees one GPU of its own calls it GPU 0, whatever its rank is.
    several_gpus = world_size == 1 or any(row.device and row.local for row in events.rows)
    of_tasks = tasks_are_ranks or (not ranks and not roots)
    placed: list[LogEvent] = []
    guessed = 0
    for row in events.rows:
        event = row._replace(time=clock.time_of(row.stamp))
        if not _is_numbered(event, bool(roots)):
            placed.append(_with_rank(event, tables, places, of_tasks=of_tasks))
        elif event.pid not in known:  # Otherwise the table says more about it.
            rank = _rank_of_number(event, places, agents)
            guess = one_node and (several_gpus or (event.device, event.local) != _FIRST_GPU)
            if rank is None and guess and event.local is not None and event.local <= MAX_LOCAL_RANK:
                rank, guessed = event.local, guessed + 1
            event = event._replace(rank=rank)
            if rank is not None and event.pid is not None:
                events.tables.by_pid.setdefault(event.pid, []).append(event)
            placed.append(event)
    if guessed:
        notes.append("a launcher names the local rank of a process only; it is taken for the rank")
    events.rows = _with_lost_peer(_joined(placed), alone=alone)


def _rank_of_number(event: LogEvent, places: NcclPlaces, agents: Mapping[Path, Sequence[int]]) -> int | None:
    """The rank of a process that an event names by its number on the node; None if no line says it."""
    path, local = event.stamp.path, event.local
    ranks = [] if path is None else agents.get(path, [])
    if local is not None and local < len(ranks):
        return ranks[local]
    return places.rank_in(path, local)


def _with_rank(
    event: LogEvent, tables: Sequence[FailureTable], places: NcclPlaces, *, of_tasks: bool
) -> LogEvent:
    """The event with the rank that a table or a GPU's address shows, and without that of a task on a node."""
    if event.kind == "process_error" and event.rank is None:
        event = error_of_table(event, tables)
        rank = places.rank_in(event.stamp.path, event.local) if event.rank is None else event.rank
        return event._replace(rank=rank)
    if event.is_task and not of_tasks:
        return event._replace(rank=None)
    return event if event.rank is not None else event._replace(rank=places.rank_of(event))


def _is_numbered(event: LogEvent, rooted: bool) -> bool:
    """Whether an event names a process by its number on its node, and nothing says more about it."""
    if event.kind not in _NUMBERED or event.local is None or event.rank is not None:
        return False
    return event.kind == "process_exit" or not (rooted or event.node is not None)


def _joined(rows: Sequence[LogEvent]) -> list[LogEvent]:
    """The events; if one line reports an end by rank and another one by node, the end has both."""
    exits = [row for row in rows if row.kind == "process_exit"]
    ranks = {row.rank for row in exits if row.rank is not None}
    nodes = {row.node for row in exits if row.node is not None}
    if len(ranks) != 1 or len(nodes) != 1 or any((row.rank is None) == (row.node is None) for row in exits):
        return list(rows)
    rank, node = ranks.pop(), nodes.pop()
    return [row._replace(rank=rank, node=node) if row in exits else row for row in rows]


def _with_lost_peer(rows: Sequence[LogEvent], *, alone: bool) -> list[LogEvent]:
    """The events; the only node that others do not reach failed, if no other failure is known.

    It is down if several nodes say so; if one does, the link between them may have failed.
    """
    lost = [row for row in rows if row.kind == "peer_lost"]
    if not alone or len({row.code for row in lost}) != 1:
        return [row._replace(kind="log", code=None) if row.kind == "peer_lost" else row for row in rows]
    down = len({(row.node, row.rank) for row in lost}) >= MIN_REPORTERS
    kind, peer = "node_down" if down else "link_down", lost[0].code
    others = [row for row in rows if row.kind != "peer_lost"]
    return [*others, *(row._replace(kind=kind, node=peer, rank=None, code=None) for row in lost)]
