"""Samples of many series as columns, from the JSON of a range vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import SourceError

#: Names are searched for numbers and ends: much longer ones take very long.
MAX_LABEL_CHARACTERS = 4096


@dataclass(frozen=True)
class SeriesMatrix:
    """Samples of several series, one series after another.

    Attributes
    ----------
    labels : tuple of mapping of str to str
        Of each series.
    counts : ndarray of shape (n_series,), int
        Samples of each series.
    time, value : ndarray of shape (n_samples,)
        Unix seconds, and the exporter's unit. Infinite values are NaN.
    infinite : int
        Number of samples that were infinite.
    """

    labels: tuple[Mapping[str, str], ...]
    counts: IntArray
    time: FloatArray
    value: FloatArray
    infinite: int = 0

    @classmethod
    def from_result(cls, result: Sequence[Mapping[str, Any]], start: float, end: float) -> SeriesMatrix:
        """Decode the result of a query, samples of ``start <= time < end`` only.

        Raises
        ------
        SourceError
            If the result is no matrix.
        """
        try:
            held = [each for each in result if each.get("values")]
            counts = np.array([len(each["values"]) for each in held], dtype=np.int64)
            pairs = list(chain.from_iterable(each["values"] for each in held))
            time = np.fromiter((float(pair[0]) for pair in pairs), np.float64, len(pairs))
            value = np.fromiter((float(pair[1]) for pair in pairs), np.float64, len(pairs))
            labels = [{"__name__": "", **label_set(each["metric"])} for each in held]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise SourceError("Prometheus answered a query with something that is no matrix") from None
        inside = (time >= start) & (time < end)
        if not inside.all():
            number = np.repeat(np.arange(counts.size), counts)[inside]
            counts = np.bincount(number, minlength=counts.size)
            time, value = time[inside], value[inside]
        infinite = np.isinf(value)
        value[infinite] = np.nan
        kept = np.flatnonzero(counts)
        return cls(tuple(labels[row] for row in kept), counts[kept], time, value, int(infinite.sum()))

    @classmethod
    def joined(cls, parts: Sequence[SeriesMatrix]) -> SeriesMatrix:
        """All series of several parts; a series in two parts stays two."""
        if not parts:
            return cls((), *(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0)))
        return cls(
            tuple(chain.from_iterable(part.labels for part in parts)),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.time for part in parts]),
            np.concatenate([part.value for part in parts]),
            sum(part.infinite for part in parts),
        )


def label_set(value: Any) -> dict[str, str]:
    """The labels of a series, as an answer has them.

    Raises
    ------
    TypeError
        If they are no texts by name.
    SourceError
        If one has more than `MAX_LABEL_CHARACTERS`.
    """
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise TypeError("labels are texts by name")
    if max(map(len, value.values()), default=0) > MAX_LABEL_CHARACTERS:
        raise SourceError(
            f"Prometheus answers with a label of more than {MAX_LABEL_CHARACTERS:,} characters",
            hint="select series without it with --match",
        )
    return value
