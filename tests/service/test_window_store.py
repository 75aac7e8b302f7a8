"""Windows by their content: equal ones are one file, and what is read is what was stored."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.window.encodings import arrow
from rca.window.schema import TEXT
from rca.window.window import Window
from rca_api.shell.store.canonical import CanonicalPieces, canonical_table
from rca_api.shell.store.window_store import WindowDamaged, WindowMissing, WindowStore, WindowStoreError


@pytest.fixture
def store(tmp_path: Path) -> WindowStore:
    return WindowStore(str(tmp_path / "windows"))


@pytest.fixture
def window(make_window) -> Window:
    return make_window(4, 6)


def the_file(tmp_path: Path) -> Path:
    [path] = (tmp_path / "windows").glob("*/*.zst")
    return path


@pytest.mark.parametrize("url", ["{folder}", "memory://{folder}"])
def test_a_stored_window_is_read_back(tmp_path: Path, window: Window, url: str) -> None:
    store = WindowStore(url.format(folder=tmp_path / "windows"))
    stored = store.put(window)
    body = store.read(stored.digest)
    assert hashlib.sha256(body).hexdigest() == stored.digest
    assert Window.from_arrow(body, arrow.CONTENT_TYPE).steps.equals(window.steps)
    assert store.put(store.get(stored.digest)) == stored
    assert list(store.digests()) == [stored.digest]
    assert store.has(stored.digest)
    assert not store.delete(stored.digest, older_than_seconds=60)
    assert store.delete(stored.digest)
    assert not store.has(stored.digest)
    assert store.delete(stored.digest)
    with pytest.raises(WindowMissing):
        store.get(stored.digest)


def test_equal_windows_are_one_file(store: WindowStore, window: Window, tmp_path: Path) -> None:
    first = store.put(window)
    again = store.put(Window.from_arrow(window.to_arrow(), arrow.CONTENT_TYPE))
    assert again == first
    assert the_file(tmp_path).stat().st_size == first.n_bytes
    other = replace(window, job=window.job.model_copy(update={"job_id": "another"}))
    assert store.put(other).digest != first.digest


def test_a_window_is_durable_once_it_is_flushed(
    store: WindowStore, window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda held: flushed.append(str(Path(f"/proc/self/fd/{held}").readlink()))
    )
    stored = store.put_unflushed(window)
    assert (store.has(stored.digest), flushed) == (True, [])
    path = the_file(tmp_path)
    expected = [str(path), str(path.parent), str(path.parent.parent)]
    store.flush(stored.digest)
    assert flushed == expected
    # Another request may not have flushed it yet.
    flushed.clear()
    assert (store.put(window), flushed) == (stored, expected)


def test_a_window_that_the_disk_does_not_take_is_refused(
    store: WindowStore, window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WindowStoreError, match="No space left"):
        store.put(window)


def test_a_damaged_file_is_noticed(store: WindowStore, window: Window, tmp_path: Path) -> None:
    digest = store.put(window).digest
    path = the_file(tmp_path)
    for content in (path.read_bytes()[:-20], b"", pa.compress(b"another window", "zstd", asbytes=True)):
        path.write_bytes(content)
        with pytest.raises(WindowDamaged, match="damaged"):
            store.read(digest)


def test_a_damaged_file_is_written_again(store: WindowStore, window: Window, tmp_path: Path) -> None:
    stored = store.put(window)
    path = the_file(tmp_path)
    whole = path.read_bytes()
    changed = whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]
    for content in (whole[:100], whole[:-1], b"", changed, pa.compress(b"other", "zstd", asbytes=True)):
        path.write_bytes(content)
        assert store.put(window) == stored
        assert store.get(stored.digest).steps.equals(window.steps)


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "0" * 64, "G" * 64])
def test_an_unknown_digest_is_missing(store: WindowStore, digest: str) -> None:
    with pytest.raises(WindowMissing):
        store.read(digest)


def test_a_folder_without_write_access_is_reported_without_its_path(tmp_path: Path, window: Window) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WindowStoreError) as caught:
        WindowStore(str(tmp_path / "file" / "windows")).put(window)
    assert str(tmp_path) not in caught.value.message


def test_readers_never_see_a_partial_file(
    store: WindowStore, window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(WindowStoreError, match="No space left"):
        store.put(window)
    assert [path for path in (tmp_path / "windows").rglob("*") if path.is_file()] == []


@given(
    names=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=12),
    unused=st.lists(st.sampled_from(["x", "y", "a"]), max_size=3),
    cut=st.integers(0, 12),
)
def test_the_layout_of_a_column_does_not_change_the_digest(
    names: list[str | None], unused: list[str], cut: int
) -> None:
    def written(column: pa.ChunkedArray) -> pa.Buffer:
        ranks = pa.array([None if name is None else 1 for name in names], pa.int32())
        sink = pa.BufferOutputStream()
        table = canonical_table(pa.table({"name": column, "rank": ranks}))
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    plain = pa.chunked_array([pa.array(names, pa.string())]).dictionary_encode().cast(TEXT)
    # The same texts with other codes, unused and repeated entries, and in two pieces.
    entries = [*unused, *sorted({name for name in names if name is not None}, reverse=True)]
    places = {name: len(entries) - 1 - entries[::-1].index(name) for name in entries}
    codes = pa.array([None if name is None else places[name] for name in names], pa.int32())
    odd = pa.DictionaryArray.from_arrays(codes, pa.array(entries, pa.string()))
    pieces = pa.chunked_array([odd[:cut], odd[cut:]], type=odd.type)
    assert written(pieces) == written(plain)
    assert pa.ipc.open_stream(written(pieces)).read_all().column("name").to_pylist() == names


def test_bytes_of_missing_integers_do_not_change_the_digest(make_window) -> None:
    def metrics(hidden: int) -> pa.Table:
        rank = pa.array(np.array([0, hidden], np.int32), mask=np.array([False, True]))
        return pa.table(
            {
                "time": [1.7e9 + 2, 1.7e9 + 3],
                "node": pa.array(["node-0", "node-0"]),
                "rank": rank,
                "device": pa.nulls(2, pa.string()),
                "name": pa.array(["node_load1", "node_load1"]),
                "value": [1.0, 2.0],
            }
        )

    one, other = (b"".join(CanonicalPieces(make_window(4, 6, metrics=metrics(each)))) for each in (0, 3))
    assert one == other
