"""Scraping of exporters: sample times, gaps, counter resets and missing series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.lab.simulation.finished_run import FinishedRun
from rca.lab.simulation.machine_differences import background_rate

MAX_METRIC_ROWS = 150_000
EXPECTED_SERIES_PER_RANK = 45
Scope = Literal["rank", "node", "job"]
# Exporters that read the devices on their own clock and keep the values for scrapes.
SELF_PACED_EXPORTERS = frozenset({"dcgm", "dcgm_profiling"})
# Relative noise from which on a signal comes in bursts: counts of rare events, queues, round trips.
BURSTY_NOISE = 0.3
# Largest share of samples that show a passing message.
MAX_SHARE_SEEING_MESSAGE = 0.2
# Series of a process exporter, of cAdvisor, or of the process itself.
PROCESS_PREFIXES = ("process_", "container_", "python_")


@dataclass(frozen=True)
class ScrapeView:
    """Measurements behind the scrapes, all of shape (n_nodes + 1, n_samples); the last row is the job's.

    Attributes
    ----------
    time : ndarray, seconds since the job's start
        Time of the measurement.
    segment, into : ndarray
        Its segment of the run, and seconds since that segment's start.
    first : ndarray, int
        First scrape of the same measurement.
    """

    time: FloatArray
    segment: IntArray
    into: FloatArray
    first: IntArray


def scrape_times(run: FinishedRun, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    """Scrape times of every node and of the whole job, and whether each is kept, (n_nodes + 1, n_samples)."""
    telemetry = run.scenario.telemetry
    n_rows = run.scenario.n_nodes + 1
    limit = max(4, MAX_METRIC_ROWS // (EXPECTED_SERIES_PER_RANK * run.scenario.world_size))
    interval = max(telemetry.interval_seconds, run.end / limit)
    count = max(2, int(run.end / interval))
    # Each target has its own place in the scrape cycle and a little jitter within it.
    offset = rng.uniform(0, interval, (n_rows, 1))
    steady = offset + interval * np.arange(count)
    times = np.minimum(steady + interval * rng.uniform(0, 0.08, (n_rows, count)), run.end)
    kept = np.ones((n_rows, count), dtype=bool)
    for row in np.flatnonzero(rng.random(n_rows) < telemetry.gap_probability):
        first = rng.integers(0, count)
        kept[row, first : first + max(1, int(count * rng.uniform(0.05, 0.3)))] = False
    return times, kept


def view_at(run: FinishedRun, time: FloatArray, first: IntArray | None = None) -> ScrapeView:
    """View of the run at these times; without `first` every scrape is a new measurement."""
    segment = np.clip(np.searchsorted(run.edges, time) - 1, 0, run.n_segments - 1)
    fresh = np.indices(time.shape)[1] if first is None else first
    return ScrapeView(time, segment, time - run.edges[segment], fresh)


def held_view(run: FinishedRun, live: ScrapeView, rng: np.random.Generator) -> ScrapeView:
    """View of exporters that collect on their own clock: the state at their last collection."""
    hold, lag = run.scenario.telemetry.hold_seconds, run.scenario.telemetry.lag_seconds
    if hold == 0:
        return live if lag == 0 else view_at(run, np.maximum(live.time - lag, 0.0))
    phase = rng.uniform(0, hold, (live.time.shape[0], 1))
    count = np.floor((live.time - phase) / hold)
    fresh = np.diff(count, axis=1, prepend=-np.inf) > 0
    first = np.maximum.accumulate(np.where(fresh, live.first, 0), axis=1)
    return view_at(run, np.maximum(phase + hold * count - lag, 0.0), first)


class MetricsScraper:
    """Turns per-segment rates and values into the metrics table.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws sample times and losses.
    node_names : sequence of str or None
        Labels of the nodes; None if they are unknown.
    """

    def __init__(self, run: FinishedRun, rng: np.random.Generator, node_names: Sequence[str] | None) -> None:
        self.run = run
        self.rng = rng
        self._telemetry = run.scenario.telemetry
        self._node_names = node_names
        # Relative variation of this job's signals, and spread of their levels between ranks.
        self._restless = float(np.exp(rng.normal(0, 0.4)))
        self._spread = float(rng.uniform(0.01, 0.15))
        self._names: dict[str, int] = {}
        self._devices: dict[str, int] = {}
        self._blocks: list[tuple[FloatArray, FloatArray, BoolArray]] = []
        self._labels: list[IntArray] = []
        self._times, self._kept = scrape_times(run, rng)
        self._live_view = view_at(run, self._times)
        self._held_view = held_view(run, self._live_view, rng)
        self._view = self._live_view

    def begin(self, exporter: str) -> None:
        """Continue with another exporter's signals; device exporters collect on their own clock."""
        self._view = self._held_view if exporter in SELF_PACED_EXPORTERS else self._live_view

    def counter(
        self,
        name: str,
        scope: Scope,
        rate: FloatArray,
        *,
        device: str | None = None,
        quantum: float = 0.0,
        noise: float = 0.06,
        fresh: bool | None = None,
    ) -> None:
        """Record a cumulative counter from its rate.

        Parameters
        ----------
        rate : ndarray of shape (n_entities, n_segments), per second
        quantum : float
            Smallest increment the exporter shows (1 for events, 0.01 for CPU seconds).
        noise : float
            Relative deviation of the rate between segments.
        fresh : bool, optional
            Whether the counter began with the job, rather than with the machine long ago.
        """
        rows = self._exported_rows(scope, rate.shape[0])
        if rows is None:
            return
        run = self.run
        always = background_rate(run, name, device, scope, rate.shape[0])
        rate = np.maximum(rate if always is None else rate + always, 0.0)[rows]
        if noise >= BURSTY_NOISE and quantum == 1:
            rate = self._bursty_events(rate, noise)
        elif noise:
            rate = rate * np.maximum(1 + self._own_level(rows.size) + self._jitter(rate.shape, noise), 0.0)
        grown = np.cumsum(rate * run.duration, axis=1)
        before = grown - rate * run.duration
        place = self._grid(scope, rows)
        row = np.arange(rows.size)[:, None]
        segment, into = self._view.segment[place], self._view.into[place]
        values = before[row, segment] + rate[row, segment] * into
        if not (run.scenario.dialect == "cpu_testbed" if fresh is None else fresh):
            total = np.maximum(grown[:, -1:], quantum)
            values += total * 10 ** self.rng.uniform(0, 3, (rows.size, 1)) * self.rng.integers(0, 2)
        values = self._reset(values)
        if quantum:
            values = np.floor(values / quantum) * quantum
        self._record(name, scope, device, rows, place, values)

    def gauge(
        self,
        name: str,
        scope: Scope,
        level: FloatArray,
        *,
        device: str | None = None,
        quantum: float = 0.0,
        noise: float = 0.02,
        dead: float | None = None,
        burst: float = 0.0,
    ) -> None:
        """Record a value at each sample.

        Parameters
        ----------
        level : ndarray of shape (n_entities, n_segments)
        quantum : float
            Smallest difference the exporter shows.
        noise : float
            Relative deviation of the value between samples.
        dead : float, optional
            Value of a rank after its process has ended.
        burst : float
            Usual addition of a passing message to the few samples that show it.
        """
        rows = self._exported_rows(scope, level.shape[0])
        if rows is None:
            return
        place = self._grid(scope, rows)
        values = level[rows][np.arange(rows.size)[:, None], self._view.segment[place]]
        if noise >= BURSTY_NOISE:
            # Each connection or queue has a level of its own.
            sigma = 1.6 * noise
            own = np.exp(self.rng.normal(0, 0.3 * noise, (rows.size, 1)))
            values = values * own * np.exp(self._jitter(values.shape, sigma) - 0.5 * sigma * sigma)
        elif noise:
            values = values * (1 + self._jitter(values.shape, noise))
        if burst:
            seen = self.rng.random(values.shape) < self.rng.uniform(
                0, MAX_SHARE_SEEING_MESSAGE, (rows.size, 1)
            )
            values = values + seen * burst * np.exp(self.rng.standard_normal(values.shape))
        if quantum:
            values = np.round(values / quantum) * quantum
        if dead is not None and scope == "rank":
            values = np.where(self._view.time[place] > self.run.process_end[rows][:, None], dead, values)
        values = np.take_along_axis(values, self._view.first[place], axis=1)
        self._record(name, scope, device, rows, place, values)

    def table(self, types: pa.Schema, offset: float) -> pa.Table:
        """Metrics table of all records, with `offset` (Unix seconds) added to the times."""
        if not self._blocks:
            return types.empty_table()
        sizes = [block[2].sum(axis=1) for block in self._blocks]
        labels = np.concatenate(self._labels)
        counts = np.concatenate(sizes)
        time = np.concatenate([block[0][block[2]] for block in self._blocks]) + offset
        value = np.concatenate([block[1][block[2]] for block in self._blocks])
        name, scope_node, rank, device = (np.repeat(labels[:, i], counts) for i in range(4))
        columns = {
            "time": pa.array(time),
            "node": _dictionary(scope_node, list(self._node_names or ())),
            "rank": pa.array(rank.astype(np.int32), mask=rank < 0),
            "device": _dictionary(device, list(self._devices)),
            "name": _dictionary(name, list(self._names)),
            "value": pa.array(value),
        }
        return pa.table([columns[field.name] for field in types], schema=types)

    def _jitter(self, shape: tuple[int, ...], noise: float) -> FloatArray:
        drawn = self.rng.standard_normal(shape, dtype=np.float32)
        return np.asarray(noise * self._restless * drawn, dtype=np.float64)

    def _own_level(self, n: int) -> FloatArray:
        return self.rng.normal(0, self._spread, (n, 1))

    def _bursty_events(self, rate: FloatArray, noise: float) -> FloatArray:
        """Whole events, over-dispersed: a segment's rate is itself drawn before its events are."""
        if not rate.any():
            return rate
        shape = 1 / (noise * self._restless) ** 2
        expected = rate * self.run.duration * self.rng.standard_gamma(shape, rate.shape) / shape
        return np.asarray(self.rng.poisson(expected) / self.run.duration)

    def _grid(self, scope: Scope, rows: IntArray) -> IntArray:
        if scope == "rank":
            return self.run.node_of[rows]
        if scope == "node":
            return rows
        return np.full(rows.size, self.run.scenario.n_nodes)

    def _exported_rows(self, scope: Scope, n: int) -> IntArray | None:
        telemetry = self._telemetry
        # A sample without a node would count for the whole job.
        nameless = scope == "node" and self._node_names is None
        if nameless or self.rng.random() < telemetry.missing_metrics:
            return None
        rows = np.arange(n)
        if telemetry.missing_series:
            rows = rows[self.rng.random(n) >= telemetry.missing_series]
        return rows if rows.size else None

    def _reset(self, values: FloatArray) -> FloatArray:
        """Restart some exporters: their counters start at zero again."""
        probability = self._telemetry.reset_probability
        if not probability:
            return values
        for row in np.flatnonzero(self.rng.random(values.shape[0]) < probability):
            at = int(self.rng.integers(1, values.shape[1]))
            values[row, at:] -= values[row, at]
        return values

    def _record(
        self,
        name: str,
        scope: Scope,
        device: str | None,
        rows: IntArray,
        place: IntArray,
        values: FloatArray,
    ) -> None:
        labels = np.full((rows.size, 4), -1, dtype=np.int64)
        labels[:, 0] = self._names.setdefault(name, len(self._names))
        if scope != "job" and self._node_names is not None:
            labels[:, 1] = place
        if scope == "rank":
            labels[:, 2] = rows
        if device is not None:
            labels[:, 3] = self._devices.setdefault(device, len(self._devices))
        kept = self._kept[place]
        if scope == "rank" and self._telemetry.forgets_dead and name.startswith(PROCESS_PREFIXES):
            kept = kept & (self._times[place] <= self.run.process_end[rows][:, None])
        self._labels.append(labels)
        self._blocks.append((self._times[place], values, kept))


def _dictionary(codes: IntArray, words: list[str]) -> pa.DictionaryArray:
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(words, type=pa.string()))
