"""Diagnoses compressed with zlib and a dictionary of what all of them have in common.

Four example answers are the dictionary. It makes a document a fifth of its size; without it, zlib makes a
half. The file of examples must never change: nothing else can unpack what was packed with it.
"""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

from sqlalchemy import LargeBinary
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

_EXAMPLES = Path(__file__).parent / "example_documents.jsonl"
_LEVEL = 6


class PlainDocument(bytes):
    """A JSON document that is stored as it is, for replicas of versions that cannot unpack."""


def pack(document: bytes) -> bytes:
    """Compress a JSON document."""
    packing = zlib.compressobj(_LEVEL, zdict=_dictionary())
    return packing.compress(document) + packing.flush()


def unpack(stored: bytes) -> bytes:
    """Give the JSON document of a packed one; a plain one is returned as it is."""
    # A JSON object begins with a brace, a zlib stream never does.
    if stored[:1] == b"{":
        return stored
    return zlib.decompressobj(zdict=_dictionary()).decompress(stored)


class PackedDocument(TypeDecorator[bytes]):
    """A JSON document; packed in the database unless it is a `PlainDocument`."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, _: Dialect) -> bytes | None:
        """Pack what is written."""
        return value if value is None or isinstance(value, PlainDocument) else pack(value)

    def process_result_value(self, value: bytes | None, _: Dialect) -> bytes | None:
        """Unpack what is read."""
        return None if value is None else unpack(value)


@cache
def _dictionary() -> bytes:
    return _EXAMPLES.read_bytes()
