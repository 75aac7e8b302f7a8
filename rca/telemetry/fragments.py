"""Windows joined from fragments: rows of any rank, in any order, sent once or several times.

A fragment is a window of one job that holds some of its rows. Of rows with the same key the last one counts,
so fragments can be sent again. A job that went back to a checkpoint repeats steps: its earlier attempt is
left out from there on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.arrays import IntArray
from rca.errors import InvalidInput
from rca.telemetry.job import Job
from rca.telemetry.schema import COLLECTIVES, EVENTS, METRICS, OPS, STEPS, TableSpec
from rca.telemetry.step_clock import sampled_within
from rca.telemetry.window import Window

#: Columns that tell the rows of a table apart.
_KEYS: dict[TableSpec, tuple[str, ...]] = {
    STEPS: ("rank", "step"),
    METRICS: ("name", "node", "rank", "device", "time"),
    EVENTS: ("kind", "node", "rank", "time", "code", "message"),
    OPS: ("rank", "step", "optype", "seq_id"),
    COLLECTIVES: ("rank", "group"),
}


def joined(fragments: Sequence[Window]) -> Window:
    """One window of all rows of the fragments of one job.

    Parameters
    ----------
    fragments : sequence of Window
        In the order in which they arrived.

    Returns
    -------
    Window
        From the first start to the last end.

    Raises
    ------
    InvalidInput
        If there is no fragment, or the fragments are of different jobs or numbers of ranks.
    """
    if not fragments:
        raise InvalidInput("there are no fragments to join")
    if len(fragments) == 1:
        return fragments[0]
    tables = {spec.name: _joined([getattr(one, spec.name) for one in fragments], spec) for spec in _KEYS}
    tables["steps"] = _latest_attempt(tables["steps"])
    window = Window.from_tables(_job([fragment.job for fragment in fragments]), **tables)
    notes = dict.fromkeys(note for fragment in fragments for note in fragment.notes)
    return replace(window, notes=(*notes, *window.notes))


def within(window: Window, begin: float, end: float) -> Window:
    """The rows of a window from `begin` up to, not including, `end`.

    Parameters
    ----------
    begin, end : float
        Unix seconds. A step belongs to the time at which its rank began it.

    Raises
    ------
    InvalidInput
        If no row of steps, metrics, events or collectives is left.
    """
    steps = window.steps
    if steps.num_rows:
        start = steps.column("start_time")
        steps = steps.filter(pc.and_(pc.greater_equal(start, begin), pc.less(start, end)))
    metrics = sampled_within(window.metrics, begin, end)
    ops = window.ops
    if ops.num_rows:
        ops = ops.filter(pc.is_in(ops.column("step"), value_set=pc.unique(steps.column("step"))))
    events = sampled_within(window.events, begin, end)
    if not (steps.num_rows or metrics.num_rows or events.num_rows or window.collectives.num_rows):
        raise InvalidInput("there is no telemetry of this time")
    job = window.job
    return replace(
        window,
        job=job.model_copy(update={"start": max(begin, job.start), "end": max(begin, min(end, job.end))}),
        steps=steps,
        metrics=metrics,
        events=events,
        ops=ops,
    )


def complete_until(window: Window, most_behind: int = 50) -> int | None:
    """Last step that all ranks have sent, as far as they still send.

    Parameters
    ----------
    most_behind : int
        Ranks that are more steps behind the first one are not waited for.

    Returns
    -------
    int or None
        None without steps.
    """
    if not window.steps.num_rows:
        return None
    rank = window.steps.column("rank").to_numpy()
    last = np.full(int(rank.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, rank, window.steps.column("step").to_numpy())
    return int(last[last >= last.max() - most_behind].min())


def between_steps(window: Window, first: int, last: int) -> Window:
    """The steps from `first` to `last`, with the samples of their time.

    Raises
    ------
    InvalidInput
        If there is no such step.
    """
    step = window.steps.column("step")
    chosen = window.steps.filter(
        pc.and_(
            pc.greater_equal(step, pa.scalar(first, step.type)),
            pc.less_equal(step, pa.scalar(last, step.type)),
        )
    )
    if not chosen.num_rows:
        raise InvalidInput(f"there are no steps from {first} to {last}")
    later = window.steps.filter(pc.greater(step, pa.scalar(last, step.type)))
    begin = max(window.job.start, float(pc.min(chosen.column("start_time")).as_py()))
    # The last event of a job, such as an exit, may be its last moment.
    end = math.nextafter(window.job.end, math.inf)
    if later.num_rows:
        end = min(end, float(pc.min(later.column("start_time")).as_py()))
    found = within(window, begin, end)
    return replace(found, steps=chosen)


def _job(jobs: Sequence[Job]) -> Job:
    """Metadata of all fragments: the last one that lists a rank gives its place, the last one the rest."""
    for name in ("job_id", "world_size"):
        values = {getattr(job, name) for job in jobs}
        if len(values) > 1:
            first, second = sorted(map(str, values))[:2]
            raise InvalidInput(
                f"fragments of one job have the {name} {first} and {second}",
                hint="give a job that was restarted with other ranks another job_id",
            )
    places = {place.rank: place for job in jobs for place in job.ranks or ()}
    sizes = [job.parallelism for job in jobs if job.parallelism is not None]
    changes: dict[str, Any] = {
        "start": min(job.start for job in jobs),
        "end": max(job.end for job in jobs),
        "ranks": tuple(places[rank] for rank in sorted(places)) or None,
        "parallelism": sizes[-1] if sizes else None,
    }
    return jobs[-1].model_copy(update=changes)


def _joined(tables: Sequence[pa.Table], spec: TableSpec) -> pa.Table:
    """All rows; of those with the same key the last one."""
    filled = [table for table in tables if table.num_rows]
    if len(filled) < 2:
        return filled[0] if filled else tables[0]
    whole = pa.concat_tables([_plain(table) for table in filled], promote_options="default")
    for name in whole.column_names:
        column = whole.column(name)
        if column.null_count and pa.types.is_floating(column.type):
            filled_up = pc.fill_null(column, np.nan)
            whole = whole.set_column(whole.column_names.index(name), name, filled_up)
    keys = [_codes(whole.column(name)) for name in _KEYS[spec] if name in whole.column_names]
    order = np.lexsort((np.arange(whole.num_rows), *keys))
    # Sorted by key, then arrival: the last row of each key differs from the next one.
    last = np.ones(order.size, dtype=bool)
    last[:-1] = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    return whole.take(pa.array(np.sort(order[last])))


def _codes(column: pa.ChunkedArray) -> IntArray:
    """A number per distinct value; null is one of them."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes: IntArray = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _latest_attempt(steps: pa.Table) -> pa.Table:
    """The rows without those that a rank began before it went back to the same or an earlier step."""
    if not steps.num_rows:
        return steps
    rank, step = steps.column("rank").to_numpy(), steps.column("step").to_numpy()
    order = np.lexsort((steps.column("start_time").to_numpy(), rank))
    first = np.flatnonzero(np.diff(rank[order], prepend=-1))
    kept = np.zeros(order.size, dtype=bool)
    for begin, end in zip(first, [*first[1:], order.size], strict=True):
        mine = step[order[begin:end]]
        later = np.minimum.accumulate(mine[::-1])[::-1]
        kept[order[begin:end]] = np.append(mine[:-1] < later[1:], True)
    return steps if kept.all() else steps.filter(pa.array(kept))


def _plain(table: pa.Table) -> pa.Table:
    """The table with text in place of dictionaries, which differ between fragments."""
    fields = [
        pa.field(field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type)
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
