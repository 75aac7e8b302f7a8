"""Unpacking bodies: whole, in members, damaged, and made to keep us busy."""

from __future__ import annotations

import gzip
import os

import pytest

from rca.errors import InvalidInput, TooLarge
from rca_api.shell.requests.decoding import decompress
from tests.for_each import for_each

LIMIT = 8 << 20
NOISE = os.urandom(3 << 20)
EMPTY = gzip.compress(b"", mtime=0)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"window"],
        [b"win", b"", b"dow"],
        [NOISE[:70_000], b"\0" * (3 << 20), NOISE],
        [b"x" * 20_000] * 50,
    ],
    ids=["one", "three", "larger than a slice", "many"],
)
def test_members_follow_one_another(pieces: list[bytes]) -> None:
    packed = b"".join(gzip.compress(piece) for piece in pieces)
    assert decompress(packed, "gzip", LIMIT) == b"".join(pieces)


@for_each("content", [b"window" * 9, NOISE], ids=["small", "large"])
@for_each("missing", [1, 8, 9])
def test_what_ends_too_early_is_damaged(content: bytes, missing: int) -> None:
    with pytest.raises(InvalidInput, match="ends too early"):
        decompress(gzip.compress(content)[:-missing], "gzip", LIMIT)


@pytest.mark.parametrize("after", [b"junk", b"\0" * 512, EMPTY[:5]])
def test_what_follows_the_last_member_is_no_part_of_it(after: bytes) -> None:
    with pytest.raises(InvalidInput, match="cannot be decompressed"):
        decompress(gzip.compress(b"window") + after, "gzip", LIMIT)


def test_a_wrong_checksum_is_noticed() -> None:
    with pytest.raises(InvalidInput, match="cannot be decompressed"):
        decompress(gzip.compress(b"window")[:-8] + b"\0" * 8, "gzip", LIMIT)


def test_a_bomb_stops_at_the_limit() -> None:
    with pytest.raises(TooLarge, match="larger after decompression"):
        decompress(gzip.compress(b" " * (64 << 20), 1), "gzip", LIMIT)


def test_members_without_content_are_bounded() -> None:
    assert decompress(EMPTY * (1 << 16), "gzip", LIMIT) == b""
    with pytest.raises(InvalidInput, match="more than 65,536 members"):
        decompress(EMPTY * ((1 << 16) + 1), "gzip", LIMIT)
