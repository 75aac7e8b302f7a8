"""Traces read in blocks give the same results, notes and errors as traces read whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_jobs import Key, execute, make_job, table_of

from rca.errors import InvalidTrace
from rca.whatif.analysis import replay_of, what_if
from rca.whatif.graph import clock_correction, replay
from rca.whatif.long_trace import blocks as long_trace_blocks
from rca.whatif.long_trace.long_trace import stream_replay
from rca.whatif.result import WhatIf

Row = dict[str, Any]
Rows = list[Row]


def slow_rank(key: Key, d: int, step: int) -> float:
    return 1.5 if (d, key[2]) == (1, 0) and key[0].endswith("compute") else 1.0


JOB = make_job(pp=2, dp=3, microbatches=4)
ROWS = execute(JOB, n_steps=12, slow=slow_rank).rows


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_trace_blocks, "BLOCK_ROWS", 500)
    monkeypatch.setattr(long_trace_blocks, "BATCH_ROWS", 130)


def write(path: Path, rows: Rows, group: int = 170) -> Path:
    """Row groups of any size, each with a dictionary of its own order."""
    table = table_of(rows)
    place = table.schema.get_field_index("optype")
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = table.schema.set(place, pa.field("optype", kind))
    with pq.ParquetWriter(path, schema) as writer:
        for number, first in enumerate(range(0, table.num_rows, group)):
            part = table.slice(first, group)
            column = part.column("optype").combine_chunks()
            names = sorted(set(column.to_pylist()), reverse=bool(number % 2))
            codes = pa.array([names.index(name) for name in column.to_pylist()], pa.int8())
            encoded = pa.DictionaryArray.from_arrays(codes, pa.array(names))
            writer.write_table(part.set_column(place, schema.field(place), encoded))
    return path


def assert_equal(streamed: WhatIf, whole: WhatIf) -> None:
    assert streamed.steps.tolist() == whole.steps.tolist()
    for name in ("measured", "no_delay", "ideal"):
        np.testing.assert_allclose(getattr(streamed, name), getattr(whole, name), rtol=1e-6)
    for name in ("by_type", "by_stage", "by_data_rank"):
        mine, theirs = getattr(streamed, name), getattr(whole, name)
        assert mine.labels == theirs.labels
        np.testing.assert_allclose(mine.seconds, theirs.seconds, rtol=1e-6)
    assert streamed.workers.rank.tolist() == whole.workers.rank.tolist()
    np.testing.assert_allclose(streamed.workers.seconds, whole.workers.seconds, rtol=1e-6)
    if whole.m_w.exact is None:
        assert streamed.m_w.exact is None
    else:
        assert streamed.m_w.exact == pytest.approx(whole.m_w.exact, rel=1e-5)
    assert [(f.pattern, f.ranks) for f in streamed.findings] == [(f.pattern, f.ranks) for f in whole.findings]
    assert without_medians(streamed.notes) == without_medians(whole.notes)
    assert streamed.warnings == whole.warnings


def without_medians(notes: tuple[str, ...]) -> list[str]:
    """The median in a note is that of the rows read together, so it may differ."""
    return sorted(re.sub(r"[0-9.]+ s is usual", "usual", note) for note in notes)


def both(path: Path, meta: dict[str, int]) -> WhatIf:
    found = what_if(stream_replay(path, meta))
    assert_equal(found, what_if(path, meta))
    return found


def answer(path: Path, read: Callable[..., Any] = replay_of) -> tuple[WhatIf | None, str | None]:
    try:
        return what_if(read(path, JOB.meta)), None
    except InvalidTrace as error:
        return None, error.message


def shuffled(rows: Rows, seed: int = 0) -> Rows:
    """Rows of each step in random order, steps in order."""
    rng = np.random.default_rng(seed)
    return [
        row
        for _, row in sorted(
            zip(rng.random(len(rows)), rows, strict=True), key=lambda r: (r[1]["step"], r[0])
        )
    ]


def without(drop: Callable[[Row], bool]) -> Rows:
    kept = [row for row in ROWS if not drop(row)]
    assert len(kept) < len(ROWS)
    return kept


def edited(where: Callable[[Row], bool], **values: object) -> Rows:
    return [row | values if where(row) else row for row in ROWS]


def other_shape(step: int, microbatches: int) -> Rows:
    """The trace with one step of another number of microbatches."""
    odd = execute(make_job(pp=2, dp=3, microbatches=microbatches), n_steps=1, seed=5).rows
    return (
        [row for row in ROWS if row["step"] < step]
        + [row | {"step": step} for row in odd]
        + [row for row in ROWS if row["step"] > step]
    )


def counted_on(rows: Rows) -> Rows:
    """Numbers of one counter per rank and step, over all types."""
    last: dict[tuple[int, int], int] = {}
    numbered = []
    for row in sorted(rows, key=lambda row: (row["step"], row["start_ts"])):
        at = (row["rank"], row["step"])
        last[at] = last.get(at, 0) + 1
        numbered.append(row | {"seq_id": last[at]})
    return numbered


def is_pause(row: Row) -> bool:
    return bool(row["optype"] == "gc")


TRACES: dict[str, Callable[[], Rows]] = {
    "as written": lambda: ROWS,
    "shuffled within steps": lambda: shuffled(ROWS),
    "interleaved steps": lambda: [ROWS[k] for k in np.random.default_rng(1).permutation(len(ROWS))],
    "a step that lacks rows": lambda: without(
        lambda r: r["step"] == 4 and r["seq_id"] == 1 and r["stage"] == 1
    ),
    "a first step that lacks rows": lambda: without(lambda r: r["step"] == 0 and r["seq_id"] == 2),
    "a first step of another shape": lambda: other_shape(0, 6),
    "a last step of another shape": lambda: other_shape(11, 2),
    "a step that lacks most rows": lambda: without(
        lambda r: r["step"] == 7 and r["stage"] + r["dp_rank"] > 0
    ),
    "a rank missing from one step": lambda: without(lambda r: (r["step"], r["rank"]) == (3, 4)),
    "a data rank only from step 6 on": lambda: without(lambda r: r["step"] < 6 and r["dp_rank"] == 2),
    "the last stage missing from the first steps": lambda: without(
        lambda r: r["step"] < 2 and r["stage"] == 1
    ),
    "rare pauses": lambda: without(lambda r: is_pause(r) and (r["step"] % 5 or r["dp_rank"])),
    "no seq_id": lambda: edited(lambda r: True, seq_id=-1),
    "no seq_id in one late step": lambda: edited(lambda r: r["step"] == 9, seq_id=-1),
    "seq_id from 1": lambda: [row | {"seq_id": row["seq_id"] + 1} for row in ROWS],
    "no chunks": lambda: edited(lambda r: True, mc=-1, gmc=-1),
    "unknown type": lambda: edited(is_pause, optype="moe-all-to-all"),
    "unknown type in one step": lambda: edited(lambda r: is_pause(r) and r["step"] == 8, optype="moe-2"),
    "unknown type with a number in its name": lambda: edited(is_pause, optype="moe (2)"),
    "bad times": lambda: edited(lambda r: r["step"] == 5 and r["seq_id"] == 3, duration=float("nan")),
    "a step of bad times": lambda: edited(lambda r: r["step"] == 5, duration=-1.0),
    "repeated rows": lambda: ROWS + [row for row in ROWS if row["step"] == 11],
    "two tensor ranks": lambda: [
        row | {"rank": 2 * row["rank"] + t, "duration": row["duration"] * (1 - 0.3 * t)}
        for row in ROWS
        for t in (0, 1)
    ],
    "skewed clock": lambda: [
        row | {"start_ts": row["start_ts"] + 0.05 + 0.02 * ((row["dp_rank"], row["stage"]) == (1, 0))}
        for row in ROWS
    ],
    "numbers that count on": lambda: [
        row
        | {
            "seq_id": row["seq_id"]
            + row["step"]
            * (
                4
                if "-compute" in row["optype"] or "-recv" in row["optype"] or "-send" in row["optype"]
                else 1
            )
        }
        for row in ROWS
    ],
    "one counter for all types": lambda: counted_on(ROWS),
    "ranks shared by workers": lambda: [row | {"rank": row["rank"] // 2} for row in ROWS],
    "whole seconds": lambda: [
        row | {"duration": float(round(100 * row["duration"]) + 1), "start_ts": 200 * row["start_ts"]}
        for row in ROWS
    ],
    "an operation of two minutes": lambda: edited(
        lambda r: is_pause(r) and (r["step"], r["rank"]) == (7, 2), duration=120.0
    ),
    "ranks unknown": lambda: edited(lambda r: r["step"] > 3, rank=-1),
}


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("group", [170, 100_000])
def test_reading_in_blocks_equals_reading_whole(tmp_path: Path, name: str, group: int) -> None:
    both(write(tmp_path / "t.parquet", TRACES[name](), group), JOB.meta)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.long
def test_reading_in_blocks_equals_reading_whole_on_damaged_traces(
    tmp_path: Path, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    lost = data.draw(st.sampled_from([0.0, 0.001, 0.05, 0.4]))
    rows: Rows = []
    for step in range(6):
        mine = [row for row in ROWS if row["step"] == step and rng.random() >= lost]
        if rng.random() < 0.3:
            mine = [mine[k] for k in rng.permutation(len(mine))]
        if rng.random() < 0.2:
            mine = [row | {"mc": -1} for row in mine]
        rows += mine
    path = write(tmp_path / "t.parquet", rows, int(rng.integers(50, 900)))
    whole, refusal = answer(path)
    streamed, streamed_refusal = answer(path, stream_replay)
    assert streamed_refusal == refusal
    if whole is not None and streamed is not None:
        assert_equal(streamed, whole)


def test_a_sample_of_the_steps_gives_graph_and_clock_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_correction, "SAMPLED_VALUES", 1)
    assert clock_correction.sampled_steps(100, 12).tolist() == [0, 1, 2, 3, 4, 6, 8, 11]
    both(write(tmp_path / "t.parquet", TRACES["skewed clock"]()), JOB.meta)


def refusals() -> dict[str, Callable[[Rows], Rows]]:
    return {
        "stage gap": lambda rows: [row | {"stage": 2 * row["stage"]} for row in rows],
        "negative stage": lambda rows: [row | {"stage": -1} if row["step"] == 9 else row for row in rows],
        "no compute": lambda rows: [row for row in rows if not row["optype"].endswith("compute")],
        "unknown types only": lambda rows: [row | {"optype": "x"} for row in rows],
        "no usable time": lambda rows: [row | {"duration": -1.0} for row in rows],
        "a step of two weeks": lambda rows: [
            row | {"start_ts": 1.2e6} if row["step"] == 9 and row["seq_id"] == 3 else row for row in rows
        ],
        "absolute single precision": lambda rows: [row | {"start_ts": 1.7e9} for row in rows],
        "fractional step": lambda rows: [row | {"seq_id": row["seq_id"] + 0.5} for row in rows],
    }


@pytest.mark.parametrize("name", refusals())
def test_traces_are_refused_as_if_read_whole(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "t.parquet", refusals()[name](ROWS))
    with pytest.raises(InvalidTrace) as whole:
        what_if(path, JOB.meta)
    with pytest.raises(InvalidTrace) as streamed:
        stream_replay(path, JOB.meta)
    # Ranges in a message may be those of a block.
    assert streamed.value.message.split()[:3] == whole.value.message.split()[:3]


def test_files_that_are_no_trace_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(InvalidTrace, match="not a readable Parquet trace"):
        stream_replay(tmp_path / "t.parquet")
    pq.write_table(table_of(ROWS).slice(0, 0), tmp_path / "t.parquet")
    with pytest.raises(InvalidTrace, match="no rows"):
        stream_replay(tmp_path / "t.parquet")
    pq.write_table(table_of(ROWS).drop_columns(["stage"]), tmp_path / "t.parquet")
    with pytest.raises(InvalidTrace, match="stage"):
        stream_replay(tmp_path / "t.parquet")


def test_many_steps_left_out_are_a_warning(tmp_path: Path) -> None:
    rows = [row for row in ROWS if row["step"] > 1 or row["dp_rank"] + row["stage"] == 0]
    found = both(write(tmp_path / "t.parquet", rows), JOB.meta)
    assert any("2 of 12 steps" in text for text in found.warnings)
    few = [row for row in ROWS if row["step"] > 0 or row["dp_rank"] + row["stage"] == 0]
    assert both(write(tmp_path / "t.parquet", few), JOB.meta).warnings == ()


def test_progress_ends_at_the_end(tmp_path: Path) -> None:
    shares: list[float] = []
    stream_replay(write(tmp_path / "t.parquet", ROWS), JOB.meta, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_results_do_not_depend_on_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MAX_FOLD", 6)
    path = write(tmp_path / "trace.parquet", ROWS)
    answers = {what_if(stream_replay(path, JOB.meta, threads=n)).to_json() for n in (1, 2, 5)}
    assert len(answers) == 1
