"""Validate a window's job and tables: every window passes here.

Missing data is normal and passes. Data that breaks the format is refused with `InvalidWindow`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sized
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from rca.errors import InvalidWindow
from rca.window.grouping import codes_of
from rca.window.job import FORMAT, Job, Parallelism, RankPlace
from rca.window.rows.clock_units import refuse_absurd_bounds, refuse_foreign_clock
from rca.window.rows.columns import normalized
from rca.window.rows.density import refuse_silent_world
from rca.window.rows.row_errors import SHOWN_ROWS, refused_rows, shown
from rca.window.rows.step_rows import checked_steps
from rca.window.schema import (
    COLLECTIVES,
    EVENTS,
    MEMBER_STATES,
    METRICS,
    SPECS,
    SUFFICIENT,
    Scope,
    TableSpec,
)

MAX_WORLD_SIZE = 262_144
#: Levels and values in a member of the job.
MAX_DEPTH = 64
MAX_VALUES = 100_000


def validated(
    job: Job | Mapping[str, object],
    steps: pa.Table | None = None,
    metrics: pa.Table | None = None,
    events: pa.Table | None = None,
    ops: pa.Table | None = None,
    collectives: pa.Table | None = None,
    *,
    scope: Scope = "window",
) -> tuple[Job, dict[str, pa.Table], tuple[str, ...]]:
    """Check tables against the format and convert them to its types and column order.

    Parameters
    ----------
    job : Job or mapping
        Metadata, as a model or as the decoded JSON object.
    steps, metrics, events, ops, collectives : pyarrow.Table
        In any column order.
    scope : {"window", "fragment", "stored"}
        What the rows are; see `rca.window.schema.Scope`.

    Returns
    -------
    job : Job
    tables : dict of str to pyarrow.Table
        All tables by name.
    notes : tuple of str
        What was dropped, such as unknown columns.

    Raises
    ------
    InvalidWindow
        It names the table, the column, the first bad rows and what was expected.
    """
    checked = validated_job(job)
    notes = list(checked.remarks or ())
    tables: dict[str, pa.Table] = {}
    given = (steps, metrics, events, ops, collectives)
    for spec, table in zip(SPECS.values(), given, strict=True):
        clean, remarks = (spec.empty(), []) if table is None else normalized(spec, table)
        _refuse_foreign_ranks(spec, clean, checked.world_size)
        tables[spec.name] = clean
        notes += remarks
    if scope == "stored":
        return checked, tables, tuple(notes)
    if scope == "window":
        refuse_silent_world(tables, checked.world_size)
    if tables["steps"].num_rows or not any(tables[name].num_rows for name in SUFFICIENT):
        tables["steps"], remarks = checked_steps(tables["steps"], checked, scope)
        notes += remarks
    _check_collectives(tables["collectives"])
    refuse_foreign_clock(METRICS, "time", tables["metrics"], checked)
    refuse_foreign_clock(COLLECTIVES, "waiting_since", tables["collectives"], checked)
    refuse_foreign_clock(EVENTS, "time", tables["events"], checked, only_units=True)
    return checked, tables, tuple(notes)


def validated_job(job: Job | Mapping[str, object]) -> Job:
    """The job's metadata; its sizes, ranks and bounds have to agree."""
    model = job if isinstance(job, Job) else _parsed_job(job)
    if model.format != FORMAT:
        raise InvalidWindow(
            f"is {model.format}",
            table="job",
            column="format",
            expected=str(FORMAT),
            hint="a newer version wrote it: update straggler-rca" if model.format > FORMAT else None,
        )
    if model.world_size > MAX_WORLD_SIZE:
        raise InvalidWindow(
            f"is {shown(model.world_size)}",
            table="job",
            column="world_size",
            expected=f"at most {MAX_WORLD_SIZE:,} ranks",
        )
    sizes = model.parallelism
    if sizes is not None and sizes.world_size != model.world_size:
        raise InvalidWindow(
            f"is {model.world_size}, but data x tensor x pipeline x context = {sizes.world_size}",
            table="job",
            column="world_size",
            expected="the product of the parallel sizes",
            hint="correct world_size or the sizes in parallelism",
        )
    refuse_absurd_bounds(model)
    _check_places(model)
    for name, value in {"hints": model.hints, **(model.model_extra or {})}.items():
        _refuse_unwieldy(name, value)
    return model


def _refuse_unwieldy(name: str, value: object) -> None:
    """Refuse what no encoder can write again, because it calls itself for each level, and what is no hint."""
    level = [value]
    values = 0
    for _ in range(MAX_DEPTH):
        inner = [
            list(one.values()) if isinstance(one, dict) else one
            for one in level
            if isinstance(one, dict | list)
        ]
        values += sum(map(len, inner))
        if not inner:
            return
        if values > MAX_VALUES:
            break
        level = list(chain.from_iterable(inner))
    raise InvalidWindow(
        "is nested too deeply or has too many values",
        table="job",
        column=name,
        expected=f"at most {MAX_DEPTH} levels and {MAX_VALUES:,} values",
    )


def _parsed_job(job: Mapping[str, object]) -> Job:
    if not isinstance(job, Mapping):
        raise InvalidWindow(f"is a {type(job).__name__}", table="job", expected="an object")
    places = job.get("ranks")
    if isinstance(places, Sized) and len(places) > MAX_WORLD_SIZE:
        # Before a model of each place is made, which takes more memory than the place itself.
        raise InvalidWindow(
            f"lists {len(places):,} ranks",
            table="job",
            column="ranks",
            expected=f"at most {MAX_WORLD_SIZE:,}, each rank once",
        )
    try:
        return Job.model_validate(dict(job))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        first = problems[0]
        rows = [
            {"field": ".".join(map(str, problem["loc"])), "input": shown(problem["input"])}
            for problem in problems[:SHOWN_ROWS]
        ]
        raise InvalidWindow(
            first["msg"],
            table="job",
            column=".".join(map(str, first["loc"])) or None,
            rows=rows,
            n_rows=len(problems),
            expected="the job's fields of format 1",
        ) from None


def _check_places(job: Job) -> None:
    """Check that ranks are listed once, within the world size, at coordinates within the parallel sizes."""
    if job.ranks is None:
        return
    sizes = job.parallelism or Parallelism(data=job.world_size)
    limits = {
        "rank": job.world_size,
        "data_rank": sizes.data * sizes.context,
        "tensor_rank": sizes.tensor,
        "pipeline_rank": sizes.pipeline,
    }
    for field, limit in limits.items():
        values = [getattr(place, field) for place in job.ranks]
        bad = [row for row, value in enumerate(values) if value is not None and value >= limit]
        _refuse_places(job, bad, field, f"is outside 0..{limit - 1}", f"a {field} below {limit}")
    first_row: dict[int, int] = {}
    repeated = [row for row, place in enumerate(job.ranks) if first_row.setdefault(place.rank, row) != row]
    _refuse_places(job, repeated, "rank", "is listed more than once", "each rank at most once")
    _refuse_shared_places(job, job.ranks)


def _refuse_shared_places(job: Job, ranks: tuple[RankPlace, ...]) -> None:
    """Refuse two ranks at one place: they would hold the same part of the model and read the same data.

    A place counts if every dimension that the job uses is listed. Ranks of one context group may be listed at
    one place, because some frameworks number data ranks without them. Without declared sizes, ranks may share
    a data rank because they form groups that are not declared, but not all of them can.
    """
    sizes = job.parallelism
    if sizes is None:
        if len(ranks) < max(2, job.world_size) or len({place.data_rank for place in ranks}) > 1:
            return
        sizes = Parallelism(data=job.world_size)
    used = {
        "data_rank": sizes.data * sizes.context,
        "tensor_rank": sizes.tensor,
        "pipeline_rank": sizes.pipeline,
    }
    fields = [field for field, size in used.items() if size > 1]
    listed: Counter[tuple[int | None, ...]] = Counter()
    bad = []
    for row, place in enumerate(ranks):
        coordinates = tuple(getattr(place, field) for field in fields)
        listed[coordinates] += 1
        if fields and None not in coordinates and listed[coordinates] > sizes.context:
            bad.append(row)
    if bad:
        raise InvalidWindow(
            "have ranks at one place of the model",
            table="job",
            column="ranks",
            rows=[
                {"row": row, "rank": ranks[row].rank}
                | {field: getattr(ranks[row], field) for field in fields}
                for row in bad[:SHOWN_ROWS]
            ],
            n_rows=len(bad),
            expected=f"another {', '.join(fields)} for each rank",
            hint="leave out coordinates that are not known; the default order then applies",
        )


def _refuse_places(job: Job, bad: list[int], field: str, message: str, expected: str) -> None:
    if not bad or job.ranks is None:
        return
    rows: list[dict[str, Any]] = [
        {"row": row, "rank": job.ranks[row].rank, field: getattr(job.ranks[row], field)}
        for row in bad[:SHOWN_ROWS]
    ]
    raise InvalidWindow(
        message, table="job", column=f"ranks.{field}", rows=rows, n_rows=len(bad), expected=expected
    )


def _refuse_foreign_ranks(spec: TableSpec, table: pa.Table, world_size: int) -> None:
    column = table.column("rank")
    if column.null_count:
        column = column.fill_null(0)
    rank = column.to_numpy()
    if rank.size and (rank.min() < 0 or rank.max() >= world_size):
        bad = (rank < 0) | (rank >= world_size)
        expected = f"0..{world_size - 1} (world_size {world_size})"
        raise refused_rows(spec, "rank", "is not one of the job's ranks", bad, table, expected=expected)


def _check_collectives(collectives: pa.Table) -> None:
    codes, states = codes_of(collectives.column("state"))
    unknown = ~np.isin(states, MEMBER_STATES)
    if unknown.any():
        bad = unknown[codes]
        message, expected = "is no state of a member", "one of " + ", ".join(MEMBER_STATES)
        raise refused_rows(COLLECTIVES, "state", message, bad, collectives, expected=expected)
    sequence = collectives.column("sequence")
    numbered = np.isin(states, ("waiting", "finished"))
    bad = numbered[codes] & sequence.is_null().to_numpy()
    if bad.any():
        message, expected = "is missing", "the number of the last collective of a waiting or finished member"
        raise refused_rows(COLLECTIVES, "sequence", message, bad, collectives, expected=expected)
    codes, _ = codes_of(collectives.column("group"))
    key = codes.astype(np.int64) * MAX_WORLD_SIZE + collectives.column("rank").to_numpy()
    order = np.argsort(key, kind="stable")
    bad = np.zeros(key.size, dtype=bool)
    bad[order[1:]] = key[order][1:] == key[order][:-1]
    if bad.any():
        message, expected = (
            "is repeated: the rank is listed twice in this group",
            "one row per group and rank",
        )
        raise refused_rows(COLLECTIVES, "rank", message, bad, collectives, expected=expected)
