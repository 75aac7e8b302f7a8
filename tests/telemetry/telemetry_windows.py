"""Small tables to break on purpose, and strategies for windows of every shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from rca.errors import InvalidWindow
from rca.window import PHASES, Window
from rca.window.names import flaw_of

START = 1_700_000_000.0
#: Texts that name nothing, or that would break a line, a terminal or an address.
UNUSABLE_NAMES = [
    "",
    " ",
    "\t",
    "\u3000",
    "a\nb",
    "a\0",
    "\x1b[31mred",
    "a\x7f",
    "a\x85b",
    "a\u2028b",
    "a\u2029",
    ".",
    "..",
    "a/../b",
    "./a",
    "a/.",
    # Marks of direction, no width, a tag.
    "a\u202eb",
    "\u2066a",
    "a\u200f",
    "a\u061cb",
    "a\u200bb",
    "\ufeffa",
    "a\U000e0041",
    # Letters and marks without a shape.
    "a\u3164",
    "\u2800",
    "a\u034fb",
    "a\ufe0f",
    "a\uffa0",
    "a\U000e0100",
]


def job(**changes: Any) -> dict[str, Any]:
    """Two ranks, ten seconds; a change to None removes the field."""
    fields = {"job_id": "llm", "world_size": 2, "start": START, "end": START + 10.0} | changes
    return {name: value for name, value in fields.items() if value is not None}


def steps(**changes: Any) -> pa.Table:
    """Two ranks with two steps each."""
    columns: dict[str, Any] = {
        "rank": [0, 0, 1, 1],
        "step": [7, 8, 7, 8],
        "start_time": [START, START + 1, START, START + 1],
        "forward_seconds": [0.4, 0.4, 0.5, None],
        "step_seconds": [0.9, 0.9, 0.9, 0.9],
    } | changes
    return pa.table({name: value for name, value in columns.items() if value is not None})


def metrics(*samples: tuple[Any, ...]) -> pa.Table:
    """Samples as (time after START, name, value[, node[, rank[, device]]])."""
    rows = [(*sample, *(None,) * (6 - len(sample))) for sample in samples]
    time, name, value, node, rank, device = zip(*rows, strict=True)
    return pa.table(
        {
            "time": [None if t is None else START + t for t in time],
            "node": pa.array(node, pa.string()),
            "rank": pa.array(rank, pa.int32()),
            "device": pa.array(device, pa.string()),
            "name": pa.array(name, pa.string()),
            "value": pa.array(value, pa.float64()),
        }
    )


def window(**changes: Any) -> Window:
    """The tables above as a window; `metrics`, `events` and `ops` may be given."""
    return Window.from_tables(changes.pop("job", job()), changes.pop("steps", steps()), **changes)


def refusal(
    job_fields: dict[str, Any] | None = None, table: pa.Table | None = None, **tables: pa.Table
) -> InvalidWindow:
    """The error that these tables are refused with."""
    with pytest.raises(InvalidWindow) as caught:
        Window.from_tables(job_fields or job(), table if table is not None else steps(), **tables)
    return caught.value


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as comparable values: NaN is written as text, since it equals nothing."""
    columns = [
        ["NaN" if isinstance(one, float) and np.isnan(one) else one for one in table.column(name).to_pylist()]
        for name in table.column_names
    ]
    return list(zip(*columns, strict=True))


def series_of(metric_table: pa.Table) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """Samples in their order, by series: what every encoding keeps."""
    held: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for time, node, rank, device, name, value in rows_of(metric_table):
        held.setdefault((name, node, rank, device), []).append((time, value))
    return held


_seconds = st.none() | st.just(float("nan")) | st.floats(0, 50)
# Twelve steps of one rank take less than the two minutes that may overlap.
_step_seconds = st.none() | st.just(float("nan")) | st.floats(1e-6, 10)
_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
_printable = st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"))
_name = st.text(_printable, min_size=1, max_size=8).filter(lambda name: flaw_of(name) is None)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Windows of every legal shape: gaps, missing phases, odd names, with and without other tables."""
    n_ranks = draw(st.integers(1, 4))
    pairs = draw(
        st.lists(
            st.tuples(st.integers(0, n_ranks - 1), st.integers(-3, 40)), min_size=1, max_size=12, unique=True
        )
    )
    n = len(pairs)
    columns: dict[str, Any] = {
        "rank": pa.array([rank for rank, _ in pairs], pa.int32()),
        "step": pa.array([step for _, step in pairs], pa.int64()),
        "start_time": [START + draw(st.floats(-5, 15)) for _ in pairs],
    }
    for name in draw(st.sets(st.sampled_from(PHASES[:-1]))) | {"step_seconds"}:
        drawn = st.lists(_step_seconds if name == "step_seconds" else _seconds, min_size=n, max_size=n)
        columns[name] = pa.array(draw(drawn), pa.float64())
    fields = job(world_size=n_ranks, end=START + 100.0, window_id=draw(st.none() | _name))
    if draw(st.booleans()):
        fields["ranks"] = [{"rank": rank, "node": draw(st.none() | _name)} for rank in range(n_ranks)]
    fields["hints"] = draw(st.dictionaries(_text, st.integers(-9, 9) | _text, max_size=2))
    return Window.from_tables(
        fields,
        pa.table(columns),
        draw(st.none() | _metrics(n_ranks)),
        draw(st.none() | _events(n_ranks)),
        draw(st.none() | _ops(n_ranks)),
    )


def _rows(schema: pa.Schema, fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[pa.Table]:
    rows = st.lists(st.fixed_dictionaries(fields), max_size=8)
    return rows.map(lambda held: pa.Table.from_pylist(held, schema=schema))


def _metrics(n_ranks: int) -> st.SearchStrategy[pa.Table]:
    schema = pa.schema(
        {
            "time": pa.float64(),
            "node": pa.string(),
            "rank": pa.int32(),
            "device": pa.string(),
            "name": pa.string(),
            "value": pa.float64(),
        }
    )
    fields = {
        "time": st.floats(START - 9, START + 99),
        "node": st.none() | _name,
        "rank": st.none() | st.integers(0, n_ranks - 1),
        "device": st.none() | _name,
        "name": st.sampled_from(["DCGM_FI_DEV_SM_CLOCK", "node_load1"]) | _name,
        "value": st.none() | st.floats(allow_infinity=False),
    }
    return _rows(schema, fields)


def _events(n_ranks: int) -> st.SearchStrategy[pa.Table]:
    schema = pa.schema(
        {
            "time": pa.float64(),
            "node": pa.string(),
            "rank": pa.int32(),
            "kind": pa.string(),
            "code": pa.string(),
            "message": pa.string(),
        }
    )
    fields = {
        "time": st.floats(START - 9, START + 99),
        "node": st.none() | _name,
        "rank": st.none() | st.integers(0, n_ranks - 1),
        "kind": st.sampled_from(["xid", "log"]),
        "code": st.none() | _text,
        "message": st.none() | _text,
    }
    return _rows(schema, fields)


def _ops(n_ranks: int) -> st.SearchStrategy[pa.Table]:
    whole = {
        name: st.integers(-1, 9) for name in ("dp_rank", "stage", "step", "seq_id", "mc", "gmc", "mb_id")
    }
    types = {name: pa.int64() for name in whole}
    schema = pa.schema(
        {"rank": pa.int64(), "optype": pa.string(), "start_ts": pa.float64(), "duration": pa.float64()}
        | types
    )
    fields = whole | {
        "rank": st.integers(0, n_ranks - 1),
        "optype": st.sampled_from(["forward-compute", "optimizer"]),
        "start_ts": st.floats(0, 1e6),
        "duration": st.floats(0, 9),
    }
    return _rows(schema, fields)
