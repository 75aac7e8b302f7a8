"""Metric samples grouped into series: the long `metrics` table, one series after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.window.catalogue import Signal, resolve
from rca.window.grouping import codes_of, contiguous_order, ranks_of, run_starts, series_numbers
from rca.window.signals.binning import bin_codes, bin_means, codes_of_values
from rca.window.window import Window

#: A queue's sample shows one moment: a healthy send queue may be full in one of 15 samples. This share of the
#: samples, at least one, is therefore cut to the next highest value.
CHANCE = 0.3
#: High samples are kept if they come in a row of this share of all samples, and of at least this many.
LASTING_SHARE, MIN_LASTING = 0.25, 4


@dataclass(frozen=True)
class SeriesSet:
    """Every known series of a window, samples in time order.

    Attributes
    ----------
    time, value : ndarray of shape (n_samples,)
        Unix seconds and the catalogue's unit; series one after another, without NaN.
    offsets : ndarray of shape (n_series + 1,), int
        Series ``i`` owns the samples ``offsets[i]:offsets[i + 1]``.
    signals : tuple of Signal
        The distinct signals, aliases resolved.
    signal, node, rank, device : ndarray of shape (n_series,), int
        Index into `signals`, `node_names` and `device_names`, and the rank number; -1 where there is none.
    unknown : mapping of str to int
        Metric names that the catalogue does not know, with their numbers of samples.
    """

    time: FloatArray
    value: FloatArray
    offsets: IntArray
    signals: tuple[Signal, ...]
    signal: IntArray
    node: IntArray
    rank: IntArray
    device: IntArray
    node_names: tuple[str, ...]
    device_names: tuple[str, ...]
    unknown: Mapping[str, int]

    @property
    def n_series(self) -> int:
        return int(self.signal.size)

    @classmethod
    def from_window(cls, window: Window) -> SeriesSet:
        """Group the metrics table by (signal, node, rank, device)."""
        table = window.metrics
        name, names = codes_of(table.column("name"))
        signals, signal_of_name = _signals(names)
        value = table.column("value").to_numpy()
        signal = signal_of_name[name]
        used = (signal >= 0) & ~np.isnan(value)
        node, node_names = codes_of(table.column("node"))
        device, device_names = codes_of(table.column("device"))
        labels = [signal, node, ranks_of(table.column("rank")), device]
        time = table.column("time").to_numpy()
        if not used.all():
            labels = [column[used] for column in labels]
            time, value = time[used], value[used]
        time, value, offsets, rows = _grouped(labels, time, value)
        value = _in_states(value, np.array([one.bits for one in signals])[labels[0][rows]], offsets)
        scale = np.array([one.scale for one in signals])
        if (scale != 1.0).any():
            value = value * np.repeat(scale[labels[0][rows]], np.diff(offsets))
        momentary = np.array([one.momentary for one in signals], dtype=bool)
        value = without_queue_spikes(value, offsets, momentary[labels[0][rows]])
        of_signal, of_node, of_rank, of_device = (column[rows].astype(np.int64) for column in labels)
        return cls(
            time=time,
            value=value,
            offsets=offsets,
            signals=signals,
            signal=of_signal,
            node=of_node,
            rank=of_rank,
            device=of_device,
            node_names=tuple(node_names),
            device_names=tuple(device_names),
            unknown=_unknown(name, names),
        )

    def bin_means(self, edges: npt.ArrayLike) -> FloatArray:
        """Each series over each time bin: means, rates or largest codes, depending on its kind.

        Parameters
        ----------
        edges : array-like of shape (n_bins + 1,), Unix seconds
            Ascending.

        Returns
        -------
        ndarray of shape (n_series, n_bins)
            In the signal's unit, per second for counters. NaN where nothing was sampled; see
            `rca.window.signals.binning`.
        """
        at = np.asarray(edges, dtype=np.float64)
        if at.ndim != 1 or at.size < 2 or not (np.diff(at) > 0).all():
            raise ValueError("edges must be at least two ascending times")
        kinds = np.array([one.kind for one in self.signals], dtype=object)[self.signal]
        coded = kinds == "state"
        out = np.empty((self.n_series, at.size - 1))
        time, value, offsets = self._only(~coded)
        # Extreme values (1e308) may overflow; the bin is then infinite or unknown.
        with np.errstate(over="ignore", invalid="ignore"):
            out[~coded] = bin_means(time, value, offsets, kinds[~coded] == "counter", at)
        time, value, offsets = self._only(coded)
        out[coded] = bin_codes(time, value, offsets, at)
        return out

    def _only(self, chosen: BoolArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """The samples of some of the series."""
        if chosen.all():
            return self.time, self.value, self.offsets
        counts = np.diff(self.offsets)
        samples = np.repeat(chosen, counts)
        offsets = np.concatenate([[0], np.cumsum(counts[chosen])])
        return self.time[samples], self.value[samples], offsets


def rows_feeding(metrics: pa.Table, channels: Collection[str]) -> pa.Table:
    """The rows of a metrics table whose signals may feed any of these channels."""
    _, names = codes_of(metrics.column("name"))
    known = ((name, resolve(name)) for name in names)
    wanted = [
        name
        for name, signal in known
        if signal is not None and not set(channels).isdisjoint(signal.all_channels())
    ]
    column = metrics.column("name").cast(pa.string())
    return metrics.filter(pc.is_in(column, value_set=pa.array(wanted, pa.string())))


def _in_states(value: FloatArray, bits: IntArray, offsets: IntArray) -> FloatArray:
    """Samples of bit masks as 1 where one of the signal's bits is set, else 0; `bits` is of each series."""
    if not bits.any():
        return value
    wanted = np.repeat(bits, np.diff(offsets))
    masked = wanted != 0
    out = value.copy()
    out[masked] = (codes_of_values(value[masked]) & wanted[masked]) != 0
    return out


def _signals(names: list[str]) -> tuple[tuple[Signal, ...], npt.NDArray[np.int32]]:
    """Distinct used signals, and for every name the index of its own (-1 = unused or unknown)."""
    positions: dict[Signal, int] = {}
    index = np.full(len(names), -1, dtype=np.int32)
    for number, name in enumerate(names):
        signal = resolve(name)
        if signal is not None and signal.all_channels():
            index[number] = positions.setdefault(signal, len(positions))
    return tuple(positions), index


def _grouped(
    labels: list[npt.NDArray[Any]], time: FloatArray, value: FloatArray
) -> tuple[FloatArray, FloatArray, IntArray, IntArray]:
    """Samples joined by series and in time order; offsets; one row of each series."""
    number, n_series = series_numbers(labels)
    order = contiguous_order(number, n_series)
    if order is not None:
        number, time, value = number[order], time[order], value[order]
    starts = run_starts(number)
    step = np.diff(time)
    step[starts[1:] - 1] = 0.0
    if (step < 0).any():
        by_time = np.lexsort((time, number))
        time, value = time[by_time], value[by_time]
    rows = starts if order is None else order[starts]
    return time, value, np.append(starts, number.size), rows


def without_queue_spikes(value: FloatArray, offsets: IntArray, momentary: BoolArray) -> FloatArray:
    """Samples of momentary series, single high ones cut.

    Parameters
    ----------
    value : ndarray of shape (n_samples,)
        Series one after another, in time order, none empty, without NaN.
    offsets : ndarray of shape (n_series + 1,), int
        Series ``i`` owns the samples ``offsets[i]:offsets[i + 1]``.
    momentary : ndarray of shape (n_series,), bool

    Returns
    -------
    ndarray of shape (n_samples,)
        The same array where no series is momentary.
    """
    if not momentary.any():
        return value
    counts = np.diff(offsets)[momentary]
    samples = np.flatnonzero(np.repeat(momentary, np.diff(offsets)))
    series = np.repeat(np.arange(counts.size), counts)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    held = value[samples]
    descending = np.lexsort((-held, series))
    chance = np.ceil(CHANCE * counts).astype(np.int64)
    ceiling = held[descending[first + np.minimum(chance, counts - 1)]][series]
    out = value.copy()
    enough = np.maximum(MIN_LASTING, np.ceil(LASTING_SHARE * counts))[series]
    lasting = _row(held > ceiling, series) >= enough
    out[samples] = np.where(lasting, held, np.minimum(held, ceiling))
    return out


def _row(high: BoolArray, series: IntArray) -> IntArray:
    """Length of the row of high samples that each sample is in; 0 for a sample that is not high."""
    breaks = np.flatnonzero((np.diff(high) != 0) | (np.diff(series) != 0)) + 1
    starts = np.concatenate([[0], breaks])
    length = np.diff(np.append(starts, high.size))
    return np.where(high, np.repeat(length, length), 0)


def _unknown(name: npt.NDArray[np.int32], names: list[str]) -> dict[str, int]:
    counts = np.bincount(name, minlength=len(names))
    return {
        text: int(count) for text, count in zip(names, counts, strict=True) if count and resolve(text) is None
    }
