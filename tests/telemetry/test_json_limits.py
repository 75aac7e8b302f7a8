"""What JSON may cost before it is refused, and keys that an object repeats."""

from __future__ import annotations

import gc
import json
import re
from contextlib import suppress
from copy import deepcopy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_windows import START, job, window

from rca.errors import InvalidInput, InvalidWindow, TooLarge
from rca.sources.read import read_window
from rca.window.encodings import json_text
from rca.window.encodings.json_text import MEMORY_PER_BYTE, json_memory, parsed_json
from rca.window.window import Window
from tests.for_each import for_each

MEGABYTE = 1 << 20
SMALL = orjson.loads(window().to_json())


def filled(unit: str, size: int = 12 * MEGABYTE) -> bytes:
    """An array of so many bytes."""
    return b"[" + unit.encode() * (size // len(unit)) + b"0]"


UNITS = {
    "zeros": "0,",
    "objects": "{},",
    "lists": "[],",
    "short texts": '"a",',
    "members": '{"":0},',
    "nested lists": "[" * 500 + "]" * 500 + ",",
    "nested objects": '{"":' * 500 + "0" + "}" * 500 + ",",
    "white space between": "0 , ",
}


@for_each("name", UNITS)
def test_json_that_would_become_large_is_refused_before_it_is_parsed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = filled(UNITS[name])
    monkeypatch.setattr(json_text.orjson, "loads", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(TooLarge, match=r"would take up to .* bytes of memory"):
        Window.from_json(body, max_bytes=len(body))
    with pytest.raises(TooLarge):
        read_window(b'{"windows":' + body + b"}", max_bytes=len(body) + 100)


def test_long_texts_count_with_their_copies() -> None:
    wide = '"' + "a" * MEGABYTE + "\U0001f600" + '"'
    assert json_memory(wide.encode()) > json_memory(b'"' + b"a" * MEGABYTE + b'"') > 8 * MEGABYTE
    assert json_memory(rb'"\ud83d\ude00' + b"a" * MEGABYTE + b'"') > 16 * MEGABYTE


def test_usual_windows_stay_far_below_the_limit() -> None:
    samples = 40_000
    usual = {
        "job": job(world_size=100),
        "steps": {
            "rank": [row % 100 for row in range(samples)],
            "step": [row // 100 for row in range(samples)],
            "start_time": [START + row // 100 + 0.123456 for row in range(samples)],
            **{
                f"{name}_seconds": [0.123456789012 + row * 1e-9 for row in range(samples)]
                for name in ("forward", "backward", "optimizer", "data_loading", "step")
            },
        },
    }
    body = orjson.dumps(usual)
    assert json_memory(body) < MEMORY_PER_BYTE * len(body)


def test_small_documents_are_not_measured() -> None:
    assert Window.from_json(orjson.dumps(SMALL), max_bytes=len(orjson.dumps(SMALL))).steps.num_rows == 4


def test_a_limit_on_bytes_holds() -> None:
    with pytest.raises(TooLarge, match="the limit is 100"):
        Window.from_json(orjson.dumps(SMALL), max_bytes=100)


def text_of(value: Any, *, spaced: bool) -> bytes:
    if spaced:
        return json.dumps(value, indent=1, separators=(" , ", " : ")).encode()
    return orjson.dumps(value)


KEYS = st.text(max_size=3) | st.sampled_from([":", '":', '\\":', "\\", '"', '\\"', "{", "a:b"])
VALUES = st.recursive(
    st.none() | st.integers(0, 9) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(value=VALUES, spaced=st.booleans(), block=st.integers(1, 40))
def test_texts_are_told_from_what_separates_them(value: Any, spaced: bool, block: int) -> None:
    with suppress(UnicodeEncodeError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_BLOCK", block)
        body = text_of(value, spaced=spaced)
        texts = re.findall(rb'"(?:\\.|[^"\\])*"', body)
        left = re.sub(rb'"(?:\\.|[^"\\])*"', b"", body)
        assert json_text._outside_strings(body) == (left.count(b":"), sum(len(text) - 1 for text in texts))


@given(value=VALUES, spaced=st.booleans())
def test_no_key_is_called_repeated_by_mistake(value: Any, spaced: bool) -> None:
    with suppress(UnicodeEncodeError):
        assert parsed_json(text_of(value, spaced=spaced), "window") == value


@given(value=VALUES, key=KEYS, other=KEYS, spaced=st.booleans())
def test_a_repeated_key_is_found_wherever_it_is(value: Any, key: str, other: str, spaced: bool) -> None:
    with suppress(UnicodeEncodeError):
        text, name = text_of(value, spaced=spaced), orjson.dumps(key)
        inner = b"{" + name + b":0," + orjson.dumps(other + "!") + b":" + text + b"," + name + b" :1}"
        if key == other + "!":
            return
        for body in (inner, b"[0," + inner + b"]", b'{"a":[[' + inner + b"]]}"):
            with pytest.raises(InvalidWindow, match="repeats the key"):
                parsed_json(body, "window")


def test_the_repeated_key_is_named() -> None:
    body = orjson.dumps(SMALL)
    for text, by in (
        (b'"job_id"', b'"world_size":1,"job_id"'),
        (b'"steps":{', b'"steps":{"rank":[],'),
        (b'"job":{', b'"job":{"hints":{"a":{"rank":[1],"r\\u0061nk":2}},'),
    ):
        with pytest.raises(InvalidWindow, match=r"repeats the key '(world_size|rank)'") as caught:
            Window.from_json(body.replace(text, by, 1))
        assert caught.value.expected == "each key once in an object"


def test_the_job_of_an_arrow_body_may_repeat_no_key_either() -> None:
    body = window().to_arrow().replace(b'"job_id":', b'"job_id":"","job_id":', 1)
    # The length in the part's header does not fit any more; the boundary counts then.
    with pytest.raises(InvalidWindow, match="repeats the key 'job_id'"):
        Window.from_arrow(body)


def test_a_key_of_a_large_text_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_NAMED_BYTES", 5)
    with pytest.raises(InvalidWindow, match="an object that repeats a key"):
        parsed_json(b'{"a":1,"a":2}', "window")


@for_each("levels", [64, 100, 252, 253, 254, 255, 900, 1022])
@for_each("kind", [list, dict])
def test_members_of_a_job_are_nested_to_a_limit(levels: int, kind: type) -> None:
    deep: Any = 0
    for _ in range(levels):
        deep = [deep] if kind is list else {"a": deep}
    for member in ("hints", "note"):
        with pytest.raises(InvalidWindow, match="nested too deeply") as caught:
            Window.from_document(SMALL | {"job": SMALL["job"] | {member: {"a": deep}}})
        assert (caught.value.table, caught.value.column) == ("job", member)


def test_members_of_a_job_have_a_number_of_values() -> None:
    for value in ([0] * 100_001, {str(n): 0 for n in range(100_001)}, [[0] * 1000] * 101):
        with pytest.raises(InvalidWindow, match="too many values"):
            Window.from_document(SMALL | {"job": SMALL["job"] | {"hints": {"a": value}}})


def test_the_collector_is_left_as_it_was() -> None:
    for before in (gc.disable, gc.enable):
        before()
        with suppress(InvalidWindow):
            Window.from_json(b"{")
        Window.from_document(SMALL)
        assert gc.isenabled() is (before is gc.enable)


def test_the_deepest_member_can_be_written_again() -> None:
    deep: Any = 0
    for _ in range(62):
        deep = [deep]
    kept = Window.from_document(SMALL | {"job": SMALL["job"] | {"hints": {"a": deep}, "note": [deep]}})
    assert read_window(kept.to_json()).job == read_window(kept.to_arrow()).job == kept.job


NASTY = st.sampled_from(
    [
        *(None, True, 0, -1, 0.5, 1e308, -1e308, 5e-324, 2**31, 2**53 + 1, 2**63, 2**64 - 1, -(2**63)),
        *("", "a" * 70_000, "\U0001f600", "\0", "\u2028", "NaN", [], {}, [None], {"": 0}, [[]] * 5),
        *(
            [[[[[[0]]]]]],
            [{"a": {"b": [0]}}],
            ["a", 1, None],
            [0.5] * 24,
            ["x"] * 24,
            [-1] * 24,
            [2**63] * 24,
        ),
    ]
)


@settings(max_examples=60)
@given(data=st.data())
def test_any_value_in_any_place_is_accepted_or_refused(data: st.DataObject) -> None:
    document = orjson.loads(orjson.dumps(SMALL))
    for _ in range(data.draw(st.integers(1, 3))):
        holder: Any = document
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            key = data.draw(st.sampled_from(keys) if keys else st.nothing())
            if isinstance(holder[key], dict | list) and holder[key] and data.draw(st.booleans()):
                holder = holder[key]
                continue
            holder[key] = deepcopy(data.draw(NASTY))
            break
    with suppress(InvalidInput):
        kept = Window.from_document(document)
        assert read_window(kept.to_json()).steps.num_rows == read_window(kept.to_arrow()).steps.num_rows == 4


@given(cut=st.data())
def test_any_damage_of_the_text_is_accepted_or_refused(cut: st.DataObject) -> None:
    body = orjson.dumps(SMALL)
    at = cut.draw(st.integers(0, len(body)))
    piece = cut.draw(
        st.binary(max_size=4)
        | st.sampled_from(
            [b"\xef\xbb\xbf", b"\\ud800", b"NaN", b"1e999", b"1" * 5000, b"[" * 1025, b'"a":0,']
        )
    )
    gone = cut.draw(st.integers(0, 20))
    for encoded in (body[:at] + piece + body[at + gone :], body.decode().encode("utf-16")):
        with suppress(InvalidInput):
            read_window(encoded)


@for_each(
    "value", ["a" * 10_000_000, ["a" * 10_000_000], {"a" * 10_000_000: 0}, [[0] * 1_000_000], [0] * 1_000_000]
)
def test_an_error_is_short_however_long_its_reason(value: Any) -> None:
    job_ = SMALL["job"]
    places = (
        {"job": job_ | {"world_size": value}},
        {"job": job_ | {"ranks": value}},
        {"steps": SMALL["steps"] | {"rank": [value] * 4}},
        {"steps": value},
        {"events": [value]},
        {"metrics": value},
        {str(value): 0},
    )
    for change in places:
        with pytest.raises(InvalidWindow) as caught:
            Window.from_document(SMALL | change)
        assert len(str(caught.value)) < 5000
        assert len(orjson.dumps(caught.value.details())) < 5000


def test_a_million_wrong_values_are_counted_and_five_are_shown() -> None:
    for table, value in (("events", [0] * 1_000_000), ("metrics", [0] * 1_000_000)):
        with pytest.raises(InvalidWindow) as caught:
            Window.from_document(SMALL | {table: value})
        assert (caught.value.n_rows, len(caught.value.rows)) == (1_000_000, 5)
    with pytest.raises(InvalidWindow) as caught:
        Window.from_document(SMALL | {"steps": SMALL["steps"] | {"step": ["x"] * 4}})
    assert [row["row"] for row in caught.value.rows] == [0, 1, 2, 3]


def test_columns_and_notes_are_limited() -> None:
    many = SMALL["steps"] | {f"c{number}": [0] * 4 for number in range(1001)}
    with pytest.raises(InvalidWindow, match="has 1,006 columns"):
        Window.from_document(SMALL | {"steps": many})
    few = SMALL["steps"] | {f"c{number}": [0] * 4 for number in range(100)}
    (note,) = Window.from_document(SMALL | {"steps": few}).notes
    assert note.endswith("and 80 more")
    assert len(note) < 300
