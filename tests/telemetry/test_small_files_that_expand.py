"""Small files that stand for very much are refused before they take memory."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rca
from rca.errors import RcaError, TooLarge
from rca.sources import read
from rca.window.encodings import directory
from tests.for_each import for_each

MAX_PEAK = 64 << 20


def refused(path: Path, error: type[RcaError] = RcaError) -> str:
    """The refusal of a file, which takes little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(error) as found:
            rca.read_window(path)
        assert tracemalloc.get_traced_memory()[1] < MAX_PEAK
    finally:
        tracemalloc.stop()
    return str(found.value)


def test_a_pickle_that_numbers_a_value_far_beyond_its_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dump_3"
    path.write_bytes(b"\x80\x04}X\x07\x00\x00\x00versionr" + struct.pack("<I", 2**24) + b".")
    assert "numbers more values" in refused(path)


@pytest.mark.system
@for_each(
    "content",
    [b"X" + struct.pack("<I", 1 << 20) + bytes(1 << 20) + b"r" + struct.pack("<I", 2**26), b"]" * 16_000_000],
    ["numbers", "lists"],
)
def test_a_large_pickle_whose_values_do_not_fit_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "dump_3"
    path.write_bytes(b"\x80\x04}X\x07\x00\x00\x00version" + content + b".")
    assert "MiB of memory" in refused(path, TooLarge)


def test_lists_that_hold_one_list_many_times_are_never_written_out(tmp_path: Path) -> None:
    many: list[object] = []
    for _ in range(60):
        many = [many, many]
    path = tmp_path / "dump_3"
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": [], "pg_config": {"0": {"ranks": many}}}))
    assert "the ranks of a group are" in refused(path)


def test_packed_json_of_many_empty_lists_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_UNPACKED_BYTES", 8 << 20)
    path = tmp_path / "window.json.gz"
    path.write_bytes(gzip.compress(b'{"job":{},"steps":[' + b"[]," * 1_000_000 + b"[]]}"))
    assert "bytes of memory" in refused(path, TooLarge)
    path.write_bytes(gzip.compress(b'{"job":{}' + b" " * (9 << 20) + b"}"))
    assert "unpacked" in refused(path, TooLarge)


def test_a_table_of_very_many_equal_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_EXPANDED_BYTES", 1 << 20)
    (tmp_path / "window.json").write_text(
        json.dumps({"format": 1, "job_id": "a", "world_size": 8, "start": 0.0, "end": 100.0})
    )
    rows = 2_000_000
    columns = {
        "rank": np.zeros(rows, np.int32),
        "step": np.zeros(rows, np.int64),
        "start_time": np.ones(rows),
    }
    pq.write_table(pa.table({**columns, "step_seconds": np.ones(rows)}), tmp_path / "steps.parquet")
    assert "2,000,000 rows" in refused(tmp_path, TooLarge)


DEEP, LONG = "[" * 100_000, "9" * 5000
FILES: dict[str, str] = {
    "window.json": f'{{"a":{DEEP}',
    "dump_1.json": f'{{"version":"2.1","pg_config":{DEEP}',
    "rank0.json": f'{{"schemaVersion":1,"traceEvents":[{{"ph":"X","cat":"kernel","args":{DEEP}',
    "status.json": f'{{"nccl_version":"1","communicators_count":1,"communicators":{DEEP}',
    "rows.jsonl": f'{{"rank":{LONG},"step":1,"start_time":1,"step_seconds":1}}\n',
    "other.json": f'{{"job":{{"x":{LONG}}}}}',
    "job.log": f"[rank0]: failed (exitcode: {LONG}) local_rank: {LONG} (pid: {LONG})\n",
}


@pytest.mark.parametrize("name", FILES)
def test_deep_documents_and_long_numbers_are_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    assert name in refused(tmp_path / name) or "window" in refused(tmp_path / name)
