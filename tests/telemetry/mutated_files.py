"""Damaged copies of files: truncated, spliced, in another encoding, with other line breaks or colours."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Mutation = Callable[[bytes, bytes, random.Random], bytes]


def _cut(data: bytes, _: bytes, draw: random.Random) -> bytes:
    begin, end = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    return data[:end] if draw.random() < 0.5 else data[begin:end]


def _spliced(data: bytes, other: bytes, draw: random.Random) -> bytes:
    here, there = draw.randrange(len(data) + 1), draw.randrange(len(other) + 1)
    return data[:here] + other[there : there + draw.randrange(4000)] + data[here:]


def _repeated(data: bytes, _: bytes, draw: random.Random) -> bytes:
    here = draw.randrange(len(data) + 1)
    return data[:here] + data[here : here + draw.randrange(400)] * draw.randrange(2, 30) + data[here:]


def _flipped(data: bytes, _: bytes, draw: random.Random) -> bytes:
    held = bytearray(data)
    for _step in range(draw.randrange(1, 40)):
        if held:
            held[draw.randrange(len(held))] = draw.randrange(256)
    return bytes(held)


def _encoded(data: bytes, _: bytes, draw: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(draw.choice(["utf-16", "utf-16-le", "utf-32", "latin-1", "utf-8-sig"]), "replace")


def _broken(data: bytes, _: bytes, draw: random.Random) -> bytes:
    return data.replace(b"\n", draw.choice([b"\r\n", b"\r", b"\n\n", b"\x00", b"\x0b", b"\xe2\x80\xa8"]))


def _coloured(data: bytes, _: bytes, draw: random.Random) -> bytes:
    colours = [b"\x1b[31m", b"\x1b[0m", b"\x1b[1;32m", b"\x1b]0;title\x07"]
    return b"".join(
        draw.choice(colours) + each if draw.random() < 0.3 else each
        for each in data.splitlines(keepends=True)
    )


def _numbers(data: bytes, _: bytes, draw: random.Random) -> bytes:
    huge = draw.choice([b"9" * 30, b"-1", b"1e400", b"9" * 5000, b"0", b"4294967296", b"NaN"])
    parts = data.split(b" ")
    for _step in range(5):
        place = draw.randrange(len(parts))
        if any(48 <= each < 58 for each in parts[place]):
            parts[place] = huge
    return b" ".join(parts)


MUTATIONS: Sequence[Mutation] = (
    _cut, _spliced, _repeated, _flipped, _encoded, _broken, _coloured, _numbers
)  # fmt: skip


def mutated(files: Sequence[bytes], seed: int) -> bytes:
    """One damaged file; the same for the same seed."""
    draw = random.Random(seed)
    data = draw.choice(files)
    for _step in range(draw.randrange(1, 4)):
        data = draw.choice(MUTATIONS)(data, draw.choice(files), draw)
    return data
