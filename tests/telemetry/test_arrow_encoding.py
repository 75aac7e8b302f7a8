"""Multipart bodies of Arrow streams: what clients send, and what damaged or hostile ones do."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import orjson
import pyarrow as pa
import pytest
from telemetry_windows import START, job, metrics, rows_of, steps, window

from rca.errors import InvalidWindow, TooLarge
from rca.window.encodings import arrow
from rca.window.window import Window
from tests.for_each import for_each

FORM = "multipart/form-data; boundary=xyz"


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def form(*parts: tuple[str, bytes], end: bytes = b"--xyz--\r\n") -> bytes:
    """A body as curl writes it: file names, no lengths, any content type."""
    head = (
        'Content-Disposition: form-data; name="{0}"; filename="{0}.x"\r\n'
        "Content-Type: application/octet-stream"
    )
    return (
        b"".join(
            b"--xyz\r\n" + head.format(name).encode() + b"\r\n\r\n" + held + b"\r\n" for name, held in parts
        )
        + end
    )


JOB = ("job", orjson.dumps(job()))
STEPS = ("steps", stream(steps()))


def refused(body: bytes, content_type: str | None = FORM) -> InvalidWindow:
    with pytest.raises(InvalidWindow) as caught:
        Window.from_arrow(body, content_type)
    return caught.value


def test_a_form_as_curl_sends_it() -> None:
    decoded = Window.from_arrow(form(JOB, STEPS, ("metrics", stream(metrics((1, "node_load1", 2.0))))), FORM)
    assert decoded.steps.num_rows == 4
    assert decoded.metrics["value"].to_pylist() == [2.0]


@pytest.mark.parametrize(
    "content_type", [None, 'multipart/mixed; boundary="xyz"', "Multipart/Form-Data;boundary=xyz"]
)
def test_the_boundary_may_be_declared_in_many_ways(content_type: str | None) -> None:
    assert Window.from_arrow(form(JOB, STEPS), content_type).steps.num_rows == 4


def test_text_before_and_after_the_parts_is_ignored() -> None:
    assert Window.from_arrow(b"preamble\r\n" + form(JOB, STEPS) + b"epilogue", FORM).steps.num_rows == 4


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_compressed_buffers(compression: str | None) -> None:
    held = stream(steps(), compression)
    assert Window.from_arrow(form(JOB, ("steps", held)), FORM).steps.num_rows == 4


def test_an_arrow_file_is_taken_for_a_stream() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, steps().schema) as writer:
        writer.write_table(steps())
    assert Window.from_arrow(form(JOB, ("steps", sink.getvalue().to_pybytes())), FORM).steps.num_rows == 4


def test_contents_may_hold_the_boundary_when_their_length_is_given() -> None:
    events = pa.table({"time": [START], "kind": ["log"], "message": [f"\r\n--{arrow.BOUNDARY}--\r\n" * 3]})
    hostile = window(events=events)
    assert rows_of(Window.from_arrow(hostile.to_arrow()).events) == rows_of(hostile.events)


def test_a_wrong_length_is_not_believed() -> None:
    body = form(JOB, STEPS).replace(b"Content-Type", b"Content-Length: 3\r\nContent-Type")
    assert Window.from_arrow(body, FORM).steps.num_rows == 4


@for_each(
    ("body", "message"),
    [
        (b"", "does not contain its boundary"),
        (b"--xyz", "ends inside a part's header"),
        (b"--xyz\r\nContent-Disposition: form-data", "ends inside a part's header"),
        (form(JOB, STEPS, end=b"")[:-40], "ends inside the part 'steps'"),
        (b"--xyz\r\nContent-Type: text/plain\r\n\r\nx\r\n--xyz--", "a part without a name"),
    ],
)
def test_a_broken_body_says_how(body: bytes, message: str) -> None:
    assert message in refused(body).message


@pytest.mark.parametrize(
    "content_type", ["application/json", "multipart/form-data", "multipart/form-data; boundary="]
)
def test_a_content_type_without_boundary(content_type: str) -> None:
    assert refused(form(JOB, STEPS), content_type).table == "window"


def test_parts_are_known_and_single() -> None:
    assert "unknown part named 'metric'" in refused(form(JOB, STEPS, ("metric", b""))).message
    assert "two parts named 'steps'" in refused(form(JOB, STEPS, STEPS)).message


@pytest.mark.parametrize("name", ["job", "steps"])
def test_two_parts_are_required(name: str) -> None:
    assert refused(form(*(part for part in (JOB, STEPS) if part[0] != name))).table == name


def test_metadata_that_is_no_json() -> None:
    assert refused(form(("job", b"{"), STEPS)).table == "job"


@for_each(
    "held", [b"", b"PAR1", STEPS[1][:200], STEPS[1][8:], b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\xff" * 64]
)
def test_a_table_that_is_no_arrow(held: bytes) -> None:
    error = refused(form(JOB, ("steps", held)))
    assert error.table == "steps"
    assert "Arrow" in error.expected or error.message == "is missing"


def test_damaged_bytes_never_do_more_than_fail() -> None:
    sound = window(metrics=metrics((1, "node_load1", 2.0), (1, "a", 2.0, "n", 1))).to_arrow()
    dice = random.Random(5)
    for _ in range(600):
        body = bytearray(sound)
        for _ in range(dice.choice([1, 1, 3])):
            body[dice.randrange(len(body))] = dice.choice([0, 255, dice.randrange(256)])
        # Anything else than a window or one of these two escapes and fails the test.
        with contextlib.suppress(InvalidWindow, TooLarge):
            assert Window.from_arrow(bytes(body), arrow.CONTENT_TYPE, max_bytes=10_000_000).steps.num_rows


def test_a_small_body_cannot_unpack_to_a_large_one() -> None:
    zeros = np.zeros(2_000_000)
    table = pa.table({"rank": zeros, "step": zeros, "start_time": zeros, "step_seconds": zeros})
    body = form(JOB, ("steps", stream(table, "zstd")))
    assert len(body) < 100_000
    with pytest.raises(TooLarge, match="steps: decodes to 64"):
        Window.from_arrow(body, FORM, max_bytes=10_000_000)


def test_rows_without_bytes_count_as_well() -> None:
    table = pa.table({"rank": pa.nulls(2**30), "step": pa.nulls(2**30)})
    with pytest.raises(TooLarge):
        Window.from_arrow(form(JOB, ("steps", stream(table))), FORM, max_bytes=1_000_000)


def test_the_limit_holds_for_all_tables_together() -> None:
    both = window(metrics=metrics(*[(1, "node_load1", 1.0)] * 50))
    alone = window().to_arrow()
    size = 4 * 8 * len(window().steps.column_names)
    assert Window.from_arrow(alone, max_bytes=2 * size).steps.num_rows == 4
    with pytest.raises(TooLarge, match="metrics"):
        Window.from_arrow(both.to_arrow(), max_bytes=2 * size)


def test_codes_outside_their_dictionary_are_refused() -> None:
    broken = pa.DictionaryArray.from_arrays(pa.array([0, 9], pa.int32()), ["a"], safe=False)
    table = metrics((1, "a", 1.0), (1, "a", 1.0)).set_column(4, "name", broken)
    error = refused(form(JOB, STEPS, ("metrics", stream(table))))
    assert (error.table, error.message[:21]) == ("metrics", "is not readable Arrow")
