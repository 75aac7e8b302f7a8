"""The canonical bytes of a window: equal windows have equal bytes, and so equal digests.

The tables of a validated window have fixed columns and types. Arrow leaves two things open. The entries of
a dictionary may have any order and may be unused, and the bytes of missing integers may have any value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rca.window.encodings import arrow
from rca.window.schema import TEXT
from rca.window.window import Window


@dataclass(frozen=True)
class CanonicalPieces:
    """The multipart Arrow encoding, uncompressed; two windows with equal tables give equal bytes.

    Every iteration writes the tables anew, one after the other: all at once take the memory of a window.
    """

    window: Window

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """Yield the pieces of the body."""
        tables = ((name, canonical_table(table)) for name, table in self.window.tables.items())
        return arrow.pieces(self.window.job, tables, compression=None)


def canonical_table(table: pa.Table) -> pa.Table:
    """The table with every column as one array without unused dictionary entries."""
    columns = {name: _canonical(_one_array(table.column(name))) for name in table.column_names}
    return pa.table(columns)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _canonical(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return _texts(array)
    if not array.null_count:
        return array
    missing = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(array.fill_null(0).to_numpy(), array.type, mask=missing)


def _texts(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Codes in the order in which the texts first appear."""
    entries = array.dictionary
    if entries.null_count or pc.count_distinct(entries).as_py() < len(entries):
        # Repeated or null entries are rare, so the slow way is fast enough.
        return _texts(array.cast(entries.type).dictionary_encode().cast(TEXT))
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    codes = array.indices.fill_null(0).to_numpy() if array.null_count else array.indices.to_numpy()
    used = pc.unique(array.indices.drop_null()).to_numpy()
    places = _places(used, len(entries))
    placed = places[codes] if len(entries) else codes
    if missing is not None:
        placed = np.where(missing, 0, placed)
    return pa.DictionaryArray.from_arrays(
        pa.array(placed, pa.int32(), mask=missing), entries.take(pa.array(used, pa.int32()))
    )


def _places(used: npt.NDArray[np.int32], n_entries: int) -> npt.NDArray[np.int32]:
    places = np.zeros(n_entries, np.int32)
    places[used] = np.arange(len(used), dtype=np.int32)
    return places
