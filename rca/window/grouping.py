"""Number the series of metric samples, and the steps: the same name, node, rank and device are one series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import IntArray


def codes_of(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Dictionary codes of a text column of a validated window (-1 = null), and the texts."""
    if column.num_chunks == 0:
        return np.empty(0, dtype=np.int32), []
    array = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    indices = array.indices
    if indices.null_count:
        indices = indices.fill_null(-1)
    return indices.to_numpy(), array.dictionary.to_pylist()


def ranks_of(column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """Rank numbers, -1 where a row belongs to no rank."""
    rank: npt.NDArray[np.int32] = (column.fill_null(-1) if column.null_count else column).to_numpy()
    return rank


def series_numbers(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int32], int]:
    """Number the distinct rows of integer columns (each >= -1) in order of first appearance.

    Parameters
    ----------
    columns : sequence of ndarray of shape (n_samples,), int

    Returns
    -------
    number : ndarray of shape (n_samples,), int32
    n_series : int
    """
    # Runs first: exporters and the JSON encoding write many samples of one series in a row.
    starts = run_starts(*columns)
    lengths = np.diff(np.append(starts, columns[0].size))
    first, *others = (column[starts] for column in columns)
    key = first.astype(np.int64) + 1
    size = int(key.max(initial=0)) + 1
    for column in others:
        width = int(column.max(initial=-1)) + 2
        if size * width >= 2**62:
            number, size = _compressed(key)
            key = number.astype(np.int64)
        key *= width
        key += column
        key += 1
        size *= width
    number, n_series = _compressed(key)
    return np.repeat(number, lengths), n_series


def _compressed(key: IntArray) -> tuple[npt.NDArray[np.int32], int]:
    encoded = pa.array(key).dictionary_encode()
    return encoded.indices.to_numpy(), len(encoded.dictionary)


def run_starts(*keys: npt.NDArray[Any]) -> IntArray:
    """Positions where a new run of rows with equal keys begins."""
    if keys[0].size == 0:
        return np.empty(0, dtype=np.int64)
    changed = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.concatenate([[0], np.flatnonzero(changed) + 1])


def contiguous_order(number: npt.NDArray[np.int32], n_series: int) -> IntArray | None:
    """Row order that joins each series' rows and keeps their order; None if they are joined already.

    Series follow one another by number, which is the order of first appearance.
    """
    if run_starts(number).size == n_series:
        return None
    # numpy sorts 16-bit keys by radix, many times faster than wider ones.
    order = np.argsort((number & 0xFFFF).astype(np.uint16), kind="stable")
    if n_series > 0xFFFF:
        high = (number >> 16).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order


def step_codes(step: IntArray) -> tuple[IntArray, int]:
    """Small codes for the step numbers, which grow with them, and how many codes there may be."""
    low, high = int(step.min()), int(step.max())
    if high - low < 4 * step.size + 1024:
        return step - low, high - low + 1
    distinct, code = np.unique(step, return_inverse=True)
    return code, distinct.size


def rows_by_rank(rank: IntArray) -> IntArray:
    """Rows sorted by rank; those of one rank keep their order."""
    # Numbers of 16 bits are sorted ten times faster.
    narrow = rank.astype(np.uint16) if rank.size and rank.max() < 1 << 16 else rank
    order: IntArray = np.argsort(narrow, kind="stable")
    return order


def rows_by_rank_and_step(rank: IntArray, code: IntArray, width: int) -> IntArray:
    """Rows sorted by rank and step; `code` is below `width` and grows with the step."""
    order = rows_by_rank(rank)
    key = rank.astype(np.int64) * width + code
    ordered = key[order]
    return order if (ordered[1:] >= ordered[:-1]).all() else np.argsort(key, kind="stable")
