"""Windows joined from fragments: rows of any rank, in any order, sent once or several times.

A fragment is a window of one job that holds some of its rows. `joined` keeps every row, so that its result
may be stored in place of the fragments. `current` is the window that is diagnosed: one row per rank and step,
with the times of one clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.errors import InvalidInput
from rca.window.job import MAX_REMARKS, Job
from rca.window.rows.attempts import rank_of_two_trainers, rows_of_latest_attempt
from rca.window.rows.clock_units import SLACK_SECONDS
from rca.window.schema import COLLECTIVES, EVENTS, METRICS, OPS, STEPS, TableSpec
from rca.window.step_times import ahead_note, ahead_of_arrival, steadied
from rca.window.times.step_clock import sampled_within
from rca.window.window import Window

#: Columns that tell the rows of a table apart. A step that a rank takes again begins at another time.
_KEYS: dict[TableSpec, tuple[str, ...]] = {
    STEPS: ("rank", "step", "attempt", "start_time"),
    METRICS: ("name", "node", "rank", "device", "time"),
    EVENTS: ("kind", "node", "rank", "time", "code", "message"),
    OPS: ("rank", "step", "optype", "seq_id", "start_ts"),
    COLLECTIVES: ("rank", "group"),
}


def joined(fragments: Sequence[Window]) -> Window:
    """All rows of the fragments of one job, those of earlier attempts as well.

    Of rows that differ in measured values only, the last one counts, in the place of the first one.

    Parameters
    ----------
    fragments : sequence of Window
        In the order in which they arrived.

    Returns
    -------
    Window
        From the first start to the last end. Rows are in the order of arrival; several may be of one step.

    Raises
    ------
    InvalidInput
        If there is no fragment, or the fragments are of different jobs or numbers of ranks.
    """
    if not fragments:
        raise InvalidInput("there are no fragments to join")
    tables = {spec.name: joined_rows([getattr(one, spec.name) for one in fragments], spec) for spec in _KEYS}
    window = Window.from_tables(_job(fragments), **tables, scope="stored")
    notes = dict.fromkeys(note for fragment in fragments for note in fragment.notes)
    return replace(window, notes=tuple(notes))


def current(window: Window) -> Window:
    """The latest attempt of joined fragments, with the times of one clock per rank.

    What is left out or moved is in the job's remarks.

    Raises
    ------
    InvalidWindow
        If the rows make no window.
    InvalidInput
        If two trainers send rows of one rank.
    """
    steps, remarks = current_steps(window.steps)
    samples = {name: getattr(window, name) for name in ("metrics", "events")}
    job = window.job
    moments = np.concatenate([each.column("time").to_numpy() for each in samples.values()])
    bounds = np.array([job.start, job.end])
    if steps.num_rows:
        began, seconds = (steps.column(name).to_numpy() for name in ("start_time", "step_seconds"))
        first, last = float(began.min()), float((began + np.nan_to_num(seconds)).max())
        near = _near(moments, first, last)
        if not near.all():
            remarks.append(f"{int((~near).sum()):,} samples and events are far from all steps, and left out")
        bounds = np.append(bounds[_near(bounds, first, last)], last)
        moments = np.append(moments[near], [first, float(began.max())])
    if moments.size:
        # The end is later than every row.
        bounds = np.append(bounds, [moments.min(), np.nextafter(moments.max(), np.inf)])
    start, end = float(bounds.min()), float(bounds.max())
    samples = {name: sampled_within(table, start, end) for name, table in samples.items()}
    remarks = [*dict.fromkeys([*(job.remarks or ()), *remarks])][-MAX_REMARKS:]
    job = job.model_copy(update={"start": start, "end": end, "remarks": tuple(remarks) or None})
    ops = joined_rows([window.ops], OPS, keys=("rank", "step", "optype", "seq_id"))
    found = Window.from_tables(job, steps=steps, ops=ops, collectives=window.collectives, **samples)
    notes = dict.fromkeys([*window.notes, *found.notes])
    return replace(found, notes=tuple(notes))


def _near(moments: FloatArray, first: float, last: float) -> BoolArray:
    found: BoolArray = (moments >= first - SLACK_SECONDS) & (moments <= last + SLACK_SECONDS)
    return found


def current_steps(steps: pa.Table) -> tuple[pa.Table, list[str]]:
    """The steps of the latest attempt, with the times of one clock per rank, and notes.

    Parameters
    ----------
    steps : pyarrow.Table
        As `joined` gives it; the columns of phases may be absent.

    Raises
    ------
    InvalidInput
        If two trainers send rows of one rank.
    """
    ahead = ahead_of_arrival(steps)
    rank = rank_of_two_trainers(steps, ahead)
    if rank is not None:
        raise InvalidInput(
            f"two trainers send rank {rank} of this job at the same time",
            hint="give each of them a job_id of its own, with RCA_COLLECT_JOB_ID",
        )
    kept, remarks = rows_of_latest_attempt(steps, ahead)
    notes = [*ahead_note(steps, ahead), *remarks]
    if "received_time" in steps.column_names:
        steps = steps.drop_columns(["received_time"])
    if not kept.all():
        steps, ahead = steps.filter(pa.array(kept)), ahead[kept]
    steps, remarks = steadied(steps, ahead)
    return steps, [*notes, *remarks]


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
    chosen = numbered(window.steps, first, last)
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


def numbered(steps: pa.Table, first: int | None, last: int | None) -> pa.Table:
    """The steps from `first` to `last`; None is no bound."""
    step = steps.column("step")
    if first is not None:
        steps = steps.filter(pc.greater_equal(step, pa.scalar(first, step.type)))
        step = steps.column("step")
    return steps if last is None else steps.filter(pc.less_equal(step, pa.scalar(last, step.type)))


def _job(fragments: Sequence[Window]) -> Job:
    """Metadata of all fragments: the last one that lists a rank gives its place, the last one the rest."""
    jobs = [fragment.job for fragment in fragments]
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
    # The bounds of a fragment whose times lie after its arrival are of the same clock.
    bounds = [one.job for one in fragments if "received_time" not in one.steps.column_names] or jobs
    changes: dict[str, Any] = {
        "start": min(job.start for job in bounds),
        "end": max(job.end for job in bounds),
        "ranks": tuple(places[rank] for rank in sorted(places)) or None,
        "parallelism": sizes[-1] if sizes else None,
    }
    return jobs[-1].model_copy(update=changes)


def joined_rows(tables: Sequence[pa.Table], spec: TableSpec, keys: Sequence[str] = ()) -> pa.Table:
    """All rows; of those with the same key the last one, in the place of the first one.

    Parameters
    ----------
    tables : sequence of pyarrow.Table
        In the order of arrival.
    keys : sequence of str, optional
        Columns that tell the rows apart; those of joined fragments if absent.
    """
    filled = [table for table in tables if table.num_rows]
    if not filled or (len(filled) == 1 and not keys):
        return filled[0] if filled else tables[0]
    whole = pa.concat_tables([_plain(table) for table in filled], promote_options="default")
    for name in whole.column_names:
        column = whole.column(name)
        if column.null_count and pa.types.is_floating(column.type):
            filled_up = pc.fill_null(column, np.nan)
            whole = whole.set_column(whole.column_names.index(name), name, filled_up)
    named = [name for name in keys or _KEYS[spec] if name in whole.column_names]
    columns = [_codes(whole.column(name)) for name in named]
    order = np.lexsort((np.arange(whole.num_rows), *columns))
    # Sorted by key, then arrival: the first row of each key differs from the one before.
    first = np.ones(order.size, dtype=bool)
    first[1:] = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    if first.all():
        return whole
    last = np.append(first[1:], True)
    places = np.argsort(order[first])
    return whole.take(pa.array(order[last][places]))


def _codes(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Numbers that are equal where the values are; null is one of them."""
    if pa.types.is_floating(column.type) or (pa.types.is_integer(column.type) and not column.null_count):
        numbers: npt.NDArray[Any] = column.to_numpy()
        return numbers
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes: IntArray = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _plain(table: pa.Table) -> pa.Table:
    """The table with text in place of dictionaries, which differ between fragments."""
    fields = [
        pa.field(field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type)
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
