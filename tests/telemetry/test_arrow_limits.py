"""What Arrow bodies may cost, and types and headers that no reader of a window can use."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import orjson
import pyarrow as pa
import pytest
from telemetry_windows import START, job, steps

from rca.errors import InvalidInput, InvalidWindow, TooLarge
from rca.window.encodings import ipc_size
from rca.window.encodings.multipart import MAX_HEADER, boundary_of, split_parts
from rca.window.rows import texts
from rca.window.schema import SPECS
from rca.window.window import Window
from tests.for_each import for_each

FORM = "multipart/form-data; boundary=xyz"
MEGABYTE = 1 << 20


def streamed(tables: list[pa.Table], compression: str | None = None) -> bytes:
    """One stream of several batches."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, tables[0].schema, options=options) as writer:
        for table in tables:
            for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]:
                writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def form(header: bytes = b"", **parts: bytes) -> bytes:
    """A body with the job and steps, and `header` in each part."""
    held = {"job": orjson.dumps(job()), "steps": streamed([steps()])} | parts
    pieces = [
        b'--xyz\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name.encode(), header, part)
        for name, part in held.items()
    ]
    return b"".join(pieces) + b"--xyz--\r\n"


def events(kind: pa.Array) -> pa.Table:
    return pa.table({"time": pa.array([START] * len(kind)), "kind": kind})


def views(length: int, n_views: int) -> pa.Array:
    """Texts that all show the same bytes."""
    shown = b"".join(struct.pack("<i4sii", length - at, b"aaaa", 0, at) for at in range(n_views))
    buffers = [None, pa.py_buffer(shown), pa.py_buffer(b"a" * length)]
    return pa.Array.from_buffers(pa.string_view(), n_views, buffers)


BOMBS: dict[str, Callable[[], bytes]] = {
    "views of one text": lambda: form(events=streamed([events(views(MEGABYTE, 2000))])),
    "coded views of one text": lambda: form(
        events=streamed(
            [events(pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), views(MEGABYTE, 2000)))]
        )
    ),
    "empty batches": lambda: form(steps=streamed([steps()] + [steps().slice(0, 0)] * 10_000)),
    "narrow numbers": lambda: form(
        steps=streamed(
            [pa.table({"rank": np.zeros(3_000_000, np.int8), "step": pa.nulls(3_000_000)})], "zstd"
        )
    ),
    "a large job": lambda: form(job=b'{"x":[' + b"{}," * 400_000 + b"0]}"),
}


@for_each("name", BOMBS)
def test_a_small_body_cannot_become_a_large_window(name: str) -> None:
    body = BOMBS[name]()
    with pytest.raises(TooLarge):
        Window.from_arrow(body, FORM, max_bytes=32 * MEGABYTE)


def test_counting_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = pa.py_buffer(streamed([steps()] + [steps().slice(0, 0)] * 3000))
    counted: list[int] = []
    whole = ipc_size._message_size
    monkeypatch.setattr(ipc_size, "_message_size", lambda *of: counted.append(1) or whole(*of))
    assert ipc_size.decoded_size(stream, MEGABYTE) > MEGABYTE
    assert len(counted) < 1500


def test_a_few_batches_cost_nothing() -> None:
    few = pa.py_buffer(streamed([steps()] * 100))
    assert ipc_size.decoded_size(few) == 100 * ipc_size.decoded_size(pa.py_buffer(streamed([steps()])))


@pytest.mark.parametrize("length", [2 * MEGABYTE, 30 * MEGABYTE])
@pytest.mark.parametrize("place", ["name", "metadata"])
def test_names_and_metadata_are_limited(place: str, length: int) -> None:
    table = steps()
    if place == "name":
        table = table.append_column("n" * length, pa.nulls(table.num_rows))
    else:
        table = table.replace_schema_metadata({"a": "b" * length})
    with pytest.raises(InvalidWindow, match="bytes of metadata") as caught:
        Window.from_arrow(form(steps=streamed([table])), FORM)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), "codes"])
def test_distinct_texts_are_limited(kind: pa.DataType | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_TEXTS", 100)
    monkeypatch.setattr(texts, "MAX_TEXT_BYTES", 10_000)
    monkeypatch.setattr(texts, "_SLICE_BYTES", 500)

    def sent(names: list[str]) -> Window:
        held = pa.array(names, pa.string() if kind == "codes" else kind)
        return Window.from_arrow(
            form(events=streamed([events(held.dictionary_encode() if kind == "codes" else held)])), FORM
        )

    usual = [f"k{number % 100}" for number in range(5000)]
    assert sent(usual).events.column("kind").to_pylist() == usual
    for many in (
        [f"k{number}" for number in range(101)],
        ["a" * 2000 + str(n) for n in range(6)],
        ["a" * 10_001],
    ):
        with pytest.raises(InvalidWindow, match="too many distinct texts") as caught:
            sent(many)
        assert caught.value.column == "kind"


def test_lengths_of_texts() -> None:
    held = ["", "ab", None, "\u00e9", "a text longer than what fits into a view"]
    expected = [0, 2, 0, 2, 40]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        array = pa.array([*held, *held], kind)
        assert texts.text_lengths(array).tolist() == expected * 2
        assert texts.text_lengths(array.slice(3, 4)).tolist() == (expected * 2)[3:7]
        assert texts.text_lengths(array.slice(0, 0)).tolist() == []


ODD_TYPES = [
    *(pa.null(), pa.bool_(), pa.uint64(), pa.float16(), pa.decimal128(9, 2), pa.decimal256(50, 2)),
    *(pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.date32(), pa.date64(), pa.time64("us")),
    *(pa.duration("s"), pa.month_day_nano_interval(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.binary_view(), pa.binary(4), pa.list_(pa.int8()), pa.large_list(pa.string())),
    *(pa.list_(pa.int8(), 2), pa.list_view(pa.int8()), pa.struct([("a", pa.int8())])),
    *(pa.map_(pa.string(), pa.int8()), pa.dictionary(pa.uint64(), pa.large_string())),
    *(pa.dictionary(pa.int8(), pa.float64()), pa.dictionary(pa.int32(), pa.string_view())),
    *(pa.dictionary(pa.int32(), pa.binary()), pa.dictionary(pa.int16(), pa.null())),
    *(pa.run_end_encoded(pa.int32(), pa.float64()), pa.run_end_encoded(pa.int16(), pa.string())),
    *(pa.dense_union([pa.field("a", pa.int8())]), pa.sparse_union([pa.field("a", pa.string())])),
    *(pa.uuid(), pa.json_(), pa.bool8()),
]


def arrays(kind: pa.DataType, length: int) -> Iterator[pa.Array]:
    """Null and other values of a type, as far as Arrow makes them."""
    for value in (None, 0, 1.5, True, "a", b"a", b"\xff", [1, 2], {"a": 1}, [("a", 1)], b"0" * 16):
        with suppress(pa.ArrowException, TypeError, ValueError):
            yield pa.array([value] * length, type=kind)


@pytest.mark.parametrize("kind", ODD_TYPES, ids=str)
@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_columns_of_any_type_are_accepted_or_refused(kind: pa.DataType, chunks: int) -> None:
    for spec in SPECS.values():
        base = steps() if spec.name == "steps" else spec.empty()
        for column in (spec.columns[0], spec.columns[-1], *(c for c in spec.columns if c.kind == "text")):
            for array in arrays(kind, base.num_rows if spec.name == "steps" else 4):
                table = (
                    pa.table({column.name: array})
                    if spec.name != "steps"
                    else replaced(base, column.name, array)
                )
                sent = [table.slice(0, 0)] if chunks == 0 else [table] * chunks
                # Anything else than a window or a refusal fails the test.
                with suppress(InvalidInput):
                    Window.from_arrow(form(**{spec.name: streamed(sent)}), FORM)


def replaced(table: pa.Table, name: str, array: pa.Array) -> pa.Table:
    left = table.drop_columns([name]) if name in table.column_names else table
    return left.append_column(name, array)


@for_each(
    "header",
    [
        b"\r\nContent-Length: " + b"9" * 5000,
        b"\r\nContent-Length: " + b"9" * 1900,
        b"\r\nContent-Length: 99999999999999999999",
        b"\r\nContent-Length: \xb2",
        b"\r\nContent-Length: -1",
        b"\r\nX: " + b"a" * 20_000,
        b"\r\n:",
        b"\r\n\x00: \xff\xfe",
        b"; name*=utf-8''%ff",
        b"; name*=nope''%ff",
        b"; name*0=a; name*1=b",
        b'; x="' + b"a;" * 900,
        b'; "' + b";" * 1900,
    ],
    ids=range(13),
)
def test_any_header_of_a_part_is_accepted_or_refused(header: bytes) -> None:
    with suppress(InvalidWindow):
        assert Window.from_arrow(form(header), FORM).steps.num_rows == 4


@for_each(
    "content_type",
    [
        "multipart/form-data; boundary=\u00e9",
        "multipart/form-data; boundary*=idna''x%ff",
        "multipart/form-data; boundary*=nope''x",
        "multipart/form-data; boundary*0=x",
        "multipart/form-data; boundary==?utf-8?q?x?=",
        'multipart/form-data; boundary="x',
        "multipart/form-data" + '; ";' * 20_000,
        "multipart/form-data; boundary=" + "x" * 100_000,
        "x" * 100_000,
    ],
    ids=range(9),
)
def test_any_content_type_is_accepted_or_refused(content_type: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidWindow) as caught:
        Window.from_arrow(form(), content_type)
    assert len(str(caught.value)) < 1000
    assert time.process_time() - began < 0.5


def test_headers_take_no_time_that_grows_with_their_square() -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="window"; '
    head += b'";' * ((MAX_HEADER - len(head)) // 2 - 10)
    body = (head + b"\r\n\r\n\r\n") * 64 + b"--x--\r\n"
    began = time.process_time()
    with suppress(InvalidWindow):
        list(split_parts(body, boundary_of(body, None)))
    assert time.process_time() - began < 1
