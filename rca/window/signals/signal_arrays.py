"""Signals as one row per rank and channel, binned over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.window.catalogue.host import CPU_MODES
from rca.window.signals.placement import Level, Placement, combined, place_series
from rca.window.signals.series import SeriesSet
from rca.window.window import Window

#: Together with the other modes, idle time gives the number of cores.
IDLE = "node_cpu_idle"


@dataclass(frozen=True)
class SignalArrays:
    """Every channel as one row per rank.

    Attributes
    ----------
    edges : ndarray of shape (n_bins + 1,), Unix seconds
    values : mapping of channel to ndarray of shape (n_ranks, n_bins)
        In the channel's unit (`rca.window.catalogue.unit_of_channel`); NaN where unknown.
    level : mapping of channel to {"rank", "node", "global"}
        What the values measure. A channel comes from one level only, because values of a rank and of its
        node are not comparable (`rca.window.signals.placement.combined` chooses the level).
    samples_used : int
        Samples of series that belong to a rank; the rest of the table is unused.
    unknown : mapping of str to int
        Metric names that the catalogue does not know, with their numbers of samples.
    """

    edges: FloatArray
    values: Mapping[str, FloatArray]
    level: Mapping[str, Level]
    samples_used: int
    unknown: Mapping[str, int]

    @property
    def unknown_names(self) -> tuple[str, ...]:
        """Metric names that the catalogue does not know, sorted."""
        return tuple(sorted(self.unknown))

    @classmethod
    def from_window(cls, window: Window, edges: npt.ArrayLike) -> SignalArrays:
        """Group, place and bin the window's metrics.

        Parameters
        ----------
        edges : array-like of shape (n_bins + 1,), Unix seconds
        """
        return PlacedSeries.from_window(window).over(edges)

    def means(self, chosen: BoolArray) -> dict[str, FloatArray]:
        """Mean of every channel over some bins, weighted by their duration; NaN if no bin is known.

        Parameters
        ----------
        chosen : ndarray of shape (n_bins,), bool

        Returns
        -------
        dict of channel to ndarray of shape (n_ranks,)
        """
        if not self.values:
            return {}
        # All channels at once, because there are many small ones.
        values = np.stack([values[:, chosen] for values in self.values.values()])
        if values.shape[2] == 1:
            return dict(zip(self.values, values[:, :, 0], strict=True))
        duration = np.diff(self.edges)[chosen]
        known = np.isfinite(values)
        total = np.where(known, duration, 0.0).sum(axis=2)
        summed = np.where(known, values * duration, 0.0).sum(axis=2)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(total > 0, summed / total, np.nan)
        return dict(zip(self.values, means, strict=True))


@dataclass(frozen=True)
class PlacedSeries:
    """The metric series of a window with the rank or node of each; they are binned over any edges."""

    series: SeriesSet
    placement: Placement

    @classmethod
    def from_window(cls, window: Window) -> PlacedSeries:
        """Group and place the window's metrics."""
        series = SeriesSet.from_window(window)
        return cls(series, place_series(series, window.job))

    @cached_property
    def _rows(self) -> dict[str, IntArray]:
        return _rows_by_channel(self.series)

    def over(self, edges: npt.ArrayLike) -> SignalArrays:
        """Every channel with a series of a rank, in bins.

        Parameters
        ----------
        edges : array-like of shape (n_bins + 1,), Unix seconds
        """
        series, at = self.series, np.asarray(edges, dtype=np.float64)
        binned = series.bin_means(at)
        values: dict[str, FloatArray] = {}
        level: dict[str, Level] = {}
        is_used = np.zeros(series.n_series, dtype=bool)
        for channel, rows in self._rows.items():
            rule = series.signals[series.signal[rows[0]]].combine
            if (found := combined(binned, rows, self.placement, rule)) is not None:
                values[channel], level[channel], used = found
                is_used[used] = True
        return SignalArrays(
            edges=at,
            values=values | cpu_shares(values, level),
            level=level,
            samples_used=int(np.diff(series.offsets)[is_used].sum()),
            unknown=series.unknown,
        )


def _rows_by_channel(series: SeriesSet) -> dict[str, IntArray]:
    """For every channel the series that feed it, sorted by channel."""
    width = len(series.device_names) + 1
    pairs, pair_of = np.unique(series.signal * width + series.device + 1, return_inverse=True)
    feeding: dict[str, list[int]] = {}
    for position, pair in enumerate(pairs.tolist()):
        signal, device = divmod(pair, width)
        name = None if device == 0 else series.device_names[device - 1]
        for channel in series.signals[signal].channels(name):
            feeding.setdefault(channel, []).append(position)
    order = np.argsort(pair_of, kind="stable")
    # A stable order keeps the series of a pair ascending.
    fed = np.split(order, np.searchsorted(pair_of[order], np.arange(1, pairs.size)))
    return {
        channel: fed[positions[0]]
        if len(positions) == 1
        else np.sort(np.concatenate([fed[position] for position in positions]))
        for channel, positions in sorted(feeding.items())
    }


def cpu_shares(values: Mapping[str, FloatArray], level: Mapping[str, Level]) -> dict[str, FloatArray]:
    """CPU channels as shares of the node's whole CPU time, idle included.

    Exporters report CPU time per core, as a mean or as a sum over cores. On 96 half-busy cores the mean over
    cores is 0.5 and ``sum by (mode)`` is 48. The sum of all modes is the number of cores, or 1.

    Parameters
    ----------
    values : mapping of channel to ndarray of shape (n_ranks, n_bins)
    level : mapping of channel to {"rank", "node", "global"}

    Returns
    -------
    dict of str to ndarray of shape (n_ranks, n_bins)
        Only the changed channels: none without idle time, and none of another level than idle time.
    """
    if IDLE not in values:
        return {}
    modes = [name for name in CPU_MODES.values() if name and level.get(name) == level[IDLE]]
    if len(modes) < 2:
        return {}
    together = np.nansum([values[name] for name in modes], axis=0)
    known = np.isfinite(values[IDLE]) & (together > 0)
    whole = np.where(known, together, 1.0)
    return {name: values[name] / whole for name in modes}
