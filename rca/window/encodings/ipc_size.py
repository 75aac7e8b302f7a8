"""The decoded size of an Arrow IPC stream, without decoding it.

A compressed buffer states its decoded length in its first eight bytes. Arrow allocates that much before it
decompresses, so a small body could claim all memory. Here the lengths are summed first. pyarrow gives a
message's flatbuffer metadata but not its fields; this module reads the four that it needs.

References
----------
Apache Arrow format, ``Message.fbs`` (Message, RecordBatch, DictionaryBatch, BodyCompression).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rca.arrays import IntArray

DICTIONARY_BATCH, RECORD_BATCH = 2, 3
#: Bytes of a number in a window. Narrower ones, and values that take no bytes in the stream, become such.
VALUE_BYTES = 8
#: What a message and each of its arrays take besides their values, in memory and in time, bytes.
MESSAGE_BYTES, ARRAY_BYTES = 16 * 1024, 256
#: So much of that is not counted, so that a low limit does not refuse small tables.
FREE_BYTES = 16 << 20
#: Limit on the names and types of a table, far above any real one.
MAX_METADATA = 1 << 20


@dataclass(frozen=True)
class _FieldNode:
    """A flatbuffer table inside `data`, at byte `position`."""

    data: memoryview
    position: int

    def field(self, index: int) -> int | None:
        """Byte position of a field's value, None if it is not set."""
        (back,) = struct.unpack_from("<i", self.data, self.position)
        vtable = self.position - back
        (size,) = struct.unpack_from("<H", self.data, vtable)
        if 4 + 2 * index >= size:
            return None
        (offset,) = struct.unpack_from("<H", self.data, vtable + 4 + 2 * index)
        return self.position + offset if offset else None

    def child(self, index: int) -> _FieldNode | None:
        at = self.field(index)
        return None if at is None else _FieldNode(self.data, self._target(at))

    def integer(self, index: int, form: str) -> int:
        at = self.field(index)
        return 0 if at is None else int(struct.unpack_from(form, self.data, at)[0])

    def pairs(self, index: int) -> IntArray:
        """A vector of structs of two int64, shape (n, 2)."""
        at = self.field(index)
        if at is None:
            return np.empty((0, 2), dtype=np.int64)
        start = self._target(at)
        (count,) = struct.unpack_from("<I", self.data, start)
        return np.frombuffer(self.data, dtype="<i8", count=2 * count, offset=start + 4).reshape(-1, 2)

    def _target(self, at: int) -> int:
        (offset,) = struct.unpack_from("<I", self.data, at)
        return at + int(offset)


def decoded_size(stream: pa.Buffer, most: int | None = None) -> int:
    """Bytes that a stream's batches and dictionaries occupy in memory, by what they declare.

    Each message and array counts besides its values. Beyond `most` the rest is not counted.

    Raises
    ------
    ValueError
        If the metadata is damaged (pyarrow raises ValueError or OSError for that, too).
    """
    values = own = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(stream):
            metadata = memoryview(message.metadata)
            if metadata.nbytes > MAX_METADATA:
                raise ValueError(f"a message has {metadata.nbytes:,} bytes of metadata")
            size, n_arrays = _message_size(metadata, message.body)
            values += size
            own += MESSAGE_BYTES + ARRAY_BYTES * n_arrays
            if most is not None and max(values, own - FREE_BYTES) > most:
                break
    except (struct.error, IndexError) as error:
        raise ValueError(f"damaged message metadata: {error}") from error
    return values + max(0, own - FREE_BYTES)


def _message_size(metadata: memoryview, body: pa.Buffer | None) -> tuple[int, int]:
    """Bytes of the values of a message, and the number of its arrays."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    message = _FieldNode(metadata, int(root))
    kind = message.integer(1, "<B")
    batch = message.child(2)
    if kind == DICTIONARY_BATCH and batch is not None:
        batch = batch.child(1)
    if kind not in (DICTIONARY_BATCH, RECORD_BATCH) or batch is None:
        return 0, 0
    length, nodes, buffers = batch.integer(0, "<q"), batch.pairs(1), batch.pairs(2)
    if length < 0 or (buffers < 0).any() or (nodes < 0).any():
        raise ValueError("negative length in message metadata")
    # As Python integers, which do not overflow.
    sizes: list[int] = nodes[:, 0].tolist()
    values = sum(max(length, size) for size in sizes)
    held = _buffers_size(buffers, body, compressed=batch.field(3) is not None)
    return max(VALUE_BYTES * values, held), len(nodes)


def _buffers_size(buffers: IntArray, body: pa.Buffer | None, *, compressed: bool) -> int:
    if not compressed or body is None:
        return sum(buffers[:, 1].tolist())
    content = memoryview(body)
    total = 0
    for offset, length in buffers.tolist():
        if length == 0:
            continue
        (declared,) = struct.unpack_from("<q", content, offset)
        # -1 marks a buffer that is not compressed.
        total += length - 8 if declared == -1 else declared
        if declared < -1:
            raise ValueError("negative decoded length")
    return total
