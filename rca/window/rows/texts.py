"""Text columns: their lengths, a limit on distinct texts, and codes for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.arrays import IntArray
from rca.errors import InvalidWindow
from rca.window.schema import TEXT, Column, TableSpec

#: Distinct texts of one column, and their bytes. Each takes several times its size while codes are made.
MAX_TEXTS = 500_000
MAX_TEXT_BYTES = 32 << 20
_SLICE_BYTES = 16 << 20
#: What a text takes besides its bytes, for the size of slices.
_TEXT_BYTES = 16


def text_lengths(texts: pa.Array) -> IntArray:
    """Bytes of each text, shape (n_texts,); 0 for null."""
    if len(texts) == 0:
        return np.zeros(0, dtype=np.int64)
    if pa.types.is_string_view(texts.type):
        # Arrow cannot count these. A view has 16 bytes; the first four are its length.
        views = np.frombuffer(texts.buffers()[1], dtype="<i4")[::4]
        return views[texts.offset : texts.offset + len(texts)].astype(np.int64)
    lengths: IntArray = pc.binary_length(texts).fill_null(0).to_numpy().astype(np.int64)
    return lengths


def encoded(spec: TableSpec, column: Column, array: pa.Array) -> pa.DictionaryArray:
    """The texts of `array` as codes of 32 bits: equal codes mean equal texts.

    Raises
    ------
    InvalidWindow
        If there are too many distinct texts.
    """
    is_coded = pa.types.is_dictionary(array.type)
    _refuse_many(spec, column, array.dictionary if is_coded else array)
    if array.type != TEXT:
        array = as_codes(array)
    return _with_distinct_values(array)


def as_codes(array: pa.Array) -> pa.DictionaryArray:
    """Texts of any type as codes of 32 bits."""
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    indices = array.indices.cast(pa.int32())
    return pa.DictionaryArray.from_arrays(indices, array.dictionary.cast(pa.string()))


def _with_distinct_values(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Merge repeated and null dictionary values."""
    texts = array.dictionary.dictionary_encode()
    if len(texts.dictionary) == len(array.dictionary):
        return array
    return pa.DictionaryArray.from_arrays(texts.indices.take(array.indices), texts.dictionary)


def _refuse_many(spec: TableSpec, column: Column, texts: pa.Array) -> None:
    lengths = text_lengths(texts)
    if lengths.size <= MAX_TEXTS and int(lengths.sum()) <= MAX_TEXT_BYTES:
        return
    known = texts.slice(0, 0)
    too_many = int(lengths.max()) > MAX_TEXT_BYTES
    for piece in () if too_many else _slices(texts, lengths):
        known = pc.unique(pa.concat_arrays([known, piece]))
        if len(known) > MAX_TEXTS or int(text_lengths(known).sum()) > MAX_TEXT_BYTES:
            too_many = True
            break
    if too_many:
        raise InvalidWindow(
            "has too many distinct texts",
            table=spec.name,
            column=column.name,
            n_rows=len(texts),
            expected=f"at most {MAX_TEXTS:,} distinct texts with {MAX_TEXT_BYTES:,} bytes in all",
        )


def _slices(texts: pa.Array, lengths: IntArray) -> Iterator[pa.Array]:
    """Pieces of about equal size: the search for distinct texts takes several times that of a piece."""
    number = np.cumsum(lengths + _TEXT_BYTES) // _SLICE_BYTES
    starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(texts)], strict=True):
        yield texts.slice(start, end - start)
