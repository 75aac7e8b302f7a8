"""Memory that the replay of a trace or a window takes, estimated before its arrays are made."""

from __future__ import annotations

import pyarrow as pa

from rca.window.memory import FIXED_BYTES, TABLE_COPIES, WindowCounts, refuse_beyond
from rca.window.window import Window

#: Per row of an operation trace: its columns as integers, dense times, and its part of the answer.
ROW_BYTES = 360
#: Per operation of a distinct step: its place in the dependency graph.
OPERATION_BYTES = 1_300
#: Per number of an answer with every worker in every step.
WORKER_STEP_BYTES = 100


def refuse_large_source(source: object, limit: int | None, *, worker_steps: bool = False) -> None:
    """Refuse a window or an operation trace in memory whose replay needs more than `limit` bytes.

    Parameters
    ----------
    source : Window, pyarrow.Table or other
        Traces that are not in memory yet are not checked.
    limit : int or None, bytes
        None for no limit.
    worker_steps : bool
        Whether the answer has a number for every worker in every step.

    Raises
    ------
    TooLarge
    """
    if limit is None or not isinstance(source, (Window, pa.Table)):
        return
    if isinstance(source, Window) and source.ops.num_rows == 0:
        counts = WindowCounts.of(source)
        n_numbers, needed, what = counts.cells, counts.memory("replay"), str(counts)
    else:
        n_numbers = source.ops.num_rows if isinstance(source, Window) else source.num_rows
        needed, what = trace_memory(source), f"{n_numbers:,} operations"
    written = WORKER_STEP_BYTES * n_numbers if worker_steps else 0
    refuse_beyond(limit, needed + written, what)


def trace_memory(source: Window | pa.Table) -> int:
    """Bytes that the replay of an operation trace takes with the trace itself, without its graphs."""
    tables = source.tables.values() if isinstance(source, Window) else [source]
    n_rows = source.ops.num_rows if isinstance(source, Window) else source.num_rows
    held = sum(table.nbytes for table in tables)
    needed: int = FIXED_BYTES["replay"] + int(TABLE_COPIES * held) + ROW_BYTES * n_rows
    return needed


def refuse_large_graph(n_rows: int, n_operations: int, limit: int | None) -> None:
    """Refuse a trace whose dependency graphs need more than `limit` bytes together with its rows.

    Parameters
    ----------
    n_rows : int
        Rows of the trace.
    n_operations : int
        Operations of one data rank, over all distinct shapes of a step.

    Raises
    ------
    TooLarge
    """
    if limit is not None:
        needed = FIXED_BYTES["replay"] + ROW_BYTES * n_rows + OPERATION_BYTES * n_operations
        refuse_beyond(limit, needed, f"dependencies of {n_operations:,} operations")
