"""Parse JSON text within a limit on memory, and refuse keys that an object repeats.

A parser makes objects of 30 to 250 bytes from values of two or three characters. 60 KiB of compressed
``[0,0,...]`` would take gigabytes. The characters that begin and separate values are counted before anything
is parsed. Of a repeated key the parser keeps the last value and says nothing.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from rca.errors import InvalidWindow, TooLarge
from rca.window.rows.row_errors import shown

#: A limit on the bytes of JSON is also one on the memory to read it: this many times as much.
MEMORY_PER_BYTE = 10
#: So much is always allowed: small documents have more than numbers.
FREE_MEMORY = 64 << 20
#: Memory that each of these characters may stand for while a window is read, bytes. Measured: an object that
#: becomes the place of a rank, a list, a sample of a metric, a member of the job, a short text.
_MEMORY = {b"{": 1000, b"[": 500, b",": 80, b":": 100, b'"': 30}
#: Copies of a long text: as a string, in tables and in the search for its repetitions. A string with one
#: character beyond ASCII may take four bytes for each.
_COPIES, _WIDE_COPIES = 12, 16
#: Measured, no JSON takes more than this many times its bytes.
_WORST = 100
#: Texts up to here are searched for the name of the repeated key.
_NAMED_BYTES = 16 << 20
#: Text is searched in blocks, because positions take eight times its size.
_BLOCK = 1 << 20
_CONTAINERS = frozenset({dict, list})
#: How other writers spell the numbers that JSON does not have.
_UNMEASURED = re.compile(rb"[\s\[:,-]?-?(NaN|nan|Infinity|inf)")

Text = bytes | bytearray | memoryview


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector: it would visit millions of new objects many times. They have no cycles."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def parsed_json(body: Text, table: str, *, max_memory: int | None = None) -> Any:
    """The decoded JSON document; `table` names it in an error.

    Parameters
    ----------
    body : bytes-like
    max_memory : int, optional
        Most bytes that the document may take when it is read, by an estimate from above.

    Raises
    ------
    InvalidWindow
        With the byte position at which the JSON is wrong, or with the key that an object repeats.
    TooLarge
        If the document may take more than `max_memory`.
    """
    if max_memory is not None and len(body) * _WORST > max(max_memory, FREE_MEMORY):
        _refuse_large(body, table, max(max_memory, FREE_MEMORY))
    try:
        with uncollected():
            document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        unmeasured = _UNMEASURED.match(bytes(body[max(error.pos - 1, 0) : error.pos + 9]))
        raise InvalidWindow(
            f"is not JSON: {error.msg} (byte {error.pos} of {len(body)})",
            table=table,
            expected="a complete JSON document",
            hint="JSON has no NaN and no Infinity; write null for a value that was not measured"
            if unmeasured
            else None,
        ) from None
    if _repeats_a_key(body, document):
        del document
        raise InvalidWindow(
            f"has an object that repeats {_repeated_key(body)}",
            table=table,
            expected="each key once in an object",
        )
    return document


def json_memory(body: Text) -> int:
    """Memory to read a JSON text as a window, bytes: an estimate from above, besides the text itself."""
    content = bytes(body)
    text = np.frombuffer(content, dtype=np.uint8)
    narrow = content.isascii() and b"\\u" not in content
    _, in_strings = _outside_strings(content)
    return (
        text.size
        + (_COPIES if narrow else _WIDE_COPIES) * in_strings
        + sum(memory * _count(text, character) for character, memory in _MEMORY.items())
    )


def _refuse_large(body: Text, table: str, max_memory: int) -> None:
    memory = json_memory(body)
    if memory > max_memory:
        raise TooLarge(
            f"{table}: the JSON would take up to {memory:,} bytes of memory; the limit is {max_memory:,}",
            hint="send fewer steps or metrics, or use the Arrow encoding",
        )


def _count(text: npt.NDArray[np.uint8], character: bytes) -> int:
    return int(np.count_nonzero(text == ord(character)))


def _repeats_a_key(body: Text, document: Any) -> bool:
    """Whether an object of `document` has fewer members than its text has.

    Each member has one colon. If all colons are members, as usual, nothing else is looked at.
    """
    colons = _count(np.frombuffer(body, dtype=np.uint8), b":")
    return colons != _usual_members(document) and _outside_strings(bytes(body))[0] != _all_members(document)


def _usual_members(document: Any) -> int:
    """Members of the objects that a window has; others are left out, because a visit of all takes longer."""
    members, left = 0, [document] if type(document) in _CONTAINERS else []
    while left:
        value = left.pop()
        if type(value) is dict:
            members += len(value)
            left += [one for one in value.values() if type(one) in _CONTAINERS]
        elif value and type(value[0]) is dict:
            members += sum([len(one) for one in value if type(one) is dict])
    return members


def _all_members(document: Any) -> int:
    members, left = 0, [document]
    while left:
        value = left.pop()
        if type(value) is dict:
            members += len(value)
            left += value.values()
        elif type(value) is list and not _CONTAINERS.isdisjoint(map(type, value)):
            left += value
    return members


def _outside_strings(content: bytes) -> tuple[int, int]:
    """Number of colons outside strings, and number of bytes in strings, of a text that is JSON."""
    if b"\\" in content:
        # Escaped quotes do not end a string.
        content = content.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    text = np.frombuffer(content, dtype=np.uint8)
    colons = in_strings = 0
    inside = False
    for at in range(0, text.size, _BLOCK):
        block = text[at : at + _BLOCK]
        edges = np.flatnonzero(block == ord('"'))
        edges = np.concatenate([[0], edges]) if inside else edges
        inside = edges.size % 2 == 1
        edges = np.concatenate([edges, [block.size]]) if inside else edges
        in_strings += int(edges[1::2].sum() - edges[::2].sum())
        before = np.searchsorted(edges, np.flatnonzero(block == ord(":")), side="right")
        colons += int(np.count_nonzero(before % 2 == 0))
    return colons, in_strings


def _repeated_key(body: Text) -> str:
    """The first repeated key, as an error shows it."""
    found = repeated_key(body) if len(body) <= _NAMED_BYTES else None
    return "a key" if found is None else f"the key {shown(found)!r}"


def repeated_key(body: Text) -> str | None:
    """The first key that an object of a short JSON text repeats; None also for a text that is no JSON."""

    class Found(Exception):
        pass

    def once(members: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in members:
            if key in seen:
                raise Found(key)
            seen.add(key)

    try:
        json.JSONDecoder(object_pairs_hook=once).decode(bytes(body).decode())
    except Found as found:
        return str(found.args[0])
    except (RecursionError, ValueError):
        pass
    return None
