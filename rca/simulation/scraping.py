"""When exporters are scraped, and when they last looked themselves.

Samples series the way exporters are scraped: at their own times, with gaps, resets and missing series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.simulation.finished_run import World
from rca.simulation.machine_differences import background

MAX_ROWS = 150_000
EXPECTED_SERIES_PER_RANK = 45


@dataclass(frozen=True)
class Look:
    """What each scrape sees, all of shape (n_nodes + 1, n_samples); the last row is for the whole job.

    Attributes
    ----------
    time : ndarray, seconds since the job's start
        When it was measured.
    segment, into : ndarray
        Where that lies in the run: the segment, and seconds into it.
    first : ndarray, int
        The first scrape that saw the same measurement.
    """

    time: FloatArray
    segment: IntArray
    into: FloatArray
    first: IntArray


def scrape_times(world: World, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    """Scrapes of every node and of the whole job, and which are not lost, (n_nodes + 1, n_samples)."""
    telemetry = world.scenario.telemetry
    n_rows = world.scenario.n_nodes + 1
    limit = max(4, MAX_ROWS // (EXPECTED_SERIES_PER_RANK * world.scenario.world_size))
    interval = max(telemetry.interval_seconds, world.end / limit)
    count = max(2, int(world.end / interval))
    # Each target has its own place in the scrape cycle and a little jitter within it.
    offset = rng.uniform(0, interval, (n_rows, 1))
    steady = offset + interval * np.arange(count)
    times = np.minimum(steady + interval * rng.uniform(0, 0.08, (n_rows, count)), world.end)
    kept = np.ones((n_rows, count), dtype=bool)
    for row in np.flatnonzero(rng.random(n_rows) < telemetry.gap_probability):
        first = rng.integers(0, count)
        kept[row, first : first + max(1, int(count * rng.uniform(0.05, 0.3)))] = False
    return times, kept


def look_at(world: World, time: FloatArray, first: IntArray | None = None) -> Look:
    """See the run as it was at these times; without `first` every scrape looks for itself."""
    segment = np.clip(np.searchsorted(world.edges, time) - 1, 0, world.n_segments - 1)
    fresh = np.indices(time.shape)[1] if first is None else first
    return Look(time, segment, time - world.edges[segment], fresh)


def held_look(world: World, live: Look, rng: np.random.Generator) -> Look:
    """See what exporters answer that collect on their own clock: the state of their last collection."""
    hold, lag = world.scenario.telemetry.hold_seconds, world.scenario.telemetry.lag_seconds
    if hold == 0:
        return live if lag == 0 else look_at(world, np.maximum(live.time - lag, 0.0))
    phase = rng.uniform(0, hold, (live.time.shape[0], 1))
    count = np.floor((live.time - phase) / hold)
    fresh = np.diff(count, axis=1, prepend=-np.inf) > 0
    first = np.maximum.accumulate(np.where(fresh, live.first, 0), axis=1)
    return look_at(world, np.maximum(phase + hold * count - lag, 0.0), first)


Scope = Literal["rank", "node", "job"]
# Exporters that ask the devices on their own clock and answer scrapes from what they found.
COLLECTING = frozenset({"dcgm", "dcgm_profiling"})
# From this relative noise on a signal comes in bursts: counts of rare events, queues, round trips.
BURSTY = 0.3
# Share of the samples that see a message pass, at most.
MOST_SEEN = 0.2
# Series that a process exporter, cAdvisor or the process itself feeds.
OF_PROCESSES = ("process_", "container_", "python_")


class Collector:
    """Turns per-segment rates and values into the metrics table.

    Parameters
    ----------
    world : World
    rng : numpy.random.Generator
        Decides sampling times and losses.
    node_names : sequence of str or None
        Labels of the nodes; None where the job does not know them.
    """

    def __init__(self, world: World, rng: np.random.Generator, node_names: Sequence[str] | None) -> None:
        self.world = world
        self.rng = rng
        self._telemetry = world.scenario.telemetry
        self._node_names = node_names
        # How restless this job's signals are, and how much one rank's level differs from the next one's.
        self._restless = float(np.exp(rng.normal(0, 0.4)))
        self._spread = float(rng.uniform(0.01, 0.15))
        self._names: dict[str, int] = {}
        self._devices: dict[str, int] = {}
        self._blocks: list[tuple[FloatArray, FloatArray, BoolArray]] = []
        self._labels: list[IntArray] = []
        self._times, self._kept = scrape_times(world, rng)
        self._live = look_at(world, self._times)
        self._held = held_look(world, self._live, rng)
        self._look = self._live

    def begin(self, exporter: str) -> None:
        """Continue with another exporter's signals; device exporters look on a clock of their own."""
        self._look = self._held if exporter in COLLECTING else self._live

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
        rows = self._admitted(scope, rate.shape[0])
        if rows is None:
            return
        world = self.world
        always = background(world, name, device, scope, rate.shape[0])
        rate = np.maximum(rate if always is None else rate + always, 0.0)[rows]
        if noise >= BURSTY and quantum == 1:
            rate = self._bursts(rate, noise)
        elif noise:
            rate = rate * np.maximum(1 + self._own_level(rows.size) + self._jitter(rate.shape, noise), 0.0)
        grown = np.cumsum(rate * world.duration, axis=1)
        before = grown - rate * world.duration
        place = self._grid(scope, rows)
        row = np.arange(rows.size)[:, None]
        segment, into = self._look.segment[place], self._look.into[place]
        values = before[row, segment] + rate[row, segment] * into
        if not (world.scenario.dialect == "cpu_testbed" if fresh is None else fresh):
            total = np.maximum(grown[:, -1:], quantum)
            values += total * 10 ** self.rng.uniform(0, 3, (rows.size, 1)) * self.rng.integers(0, 2)
        values = self._reset(values)
        if quantum:
            values = np.floor(values / quantum) * quantum
        self._keep(name, scope, device, rows, place, values)

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
        """Record a value as it is at each sample.

        Parameters
        ----------
        level : ndarray of shape (n_entities, n_segments)
        quantum : float
            Smallest difference the exporter shows.
        noise : float
            Relative deviation of the value between samples.
        dead : float, optional
            What a rank shows once its process is gone.
        burst : float
            What a message that passes adds, usually, to the few samples that happen to see it.
        """
        rows = self._admitted(scope, level.shape[0])
        if rows is None:
            return
        place = self._grid(scope, rows)
        values = level[rows][np.arange(rows.size)[:, None], self._look.segment[place]]
        if noise >= BURSTY:
            # Each connection or queue also has a level of its own.
            sigma = 1.6 * noise
            own = np.exp(self.rng.normal(0, 0.3 * noise, (rows.size, 1)))
            values = values * own * np.exp(self._jitter(values.shape, sigma) - 0.5 * sigma * sigma)
        elif noise:
            values = values * (1 + self._jitter(values.shape, noise))
        if burst:
            seen = self.rng.random(values.shape) < self.rng.uniform(0, MOST_SEEN, (rows.size, 1))
            values = values + seen * burst * np.exp(self.rng.standard_normal(values.shape))
        if quantum:
            values = np.round(values / quantum) * quantum
        if dead is not None and scope == "rank":
            values = np.where(self._look.time[place] > self.world.death[rows][:, None], dead, values)
        values = np.take_along_axis(values, self._look.first[place], axis=1)
        self._keep(name, scope, device, rows, place, values)

    def table(self, types: pa.Schema, offset: float) -> pa.Table:
        """Everything recorded, `offset` (Unix seconds) added to the times."""
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

    def _bursts(self, rate: FloatArray, noise: float) -> FloatArray:
        """Whole events, over-dispersed: a segment's rate is itself drawn before its events are."""
        if not rate.any():
            return rate
        shape = 1 / (noise * self._restless) ** 2
        expected = rate * self.world.duration * self.rng.standard_gamma(shape, rate.shape) / shape
        return np.asarray(self.rng.poisson(expected) / self.world.duration)

    def _grid(self, scope: Scope, rows: IntArray) -> IntArray:
        if scope == "rank":
            return self.world.node_of[rows]
        if scope == "node":
            return rows
        return np.full(rows.size, self.world.scenario.n_nodes)

    def _admitted(self, scope: Scope, n: int) -> IntArray | None:
        telemetry = self._telemetry
        # A sample without a node would be read as everybody's.
        nameless = scope == "node" and self._node_names is None
        if nameless or self.rng.random() < telemetry.missing_metrics:
            return None
        rows = np.arange(n)
        if telemetry.missing_series:
            rows = rows[self.rng.random(n) >= telemetry.missing_series]
        return rows if rows.size else None

    def _reset(self, values: FloatArray) -> FloatArray:
        """Restart some exporters: their counters begin again at zero."""
        probability = self._telemetry.reset_probability
        if not probability:
            return values
        for row in np.flatnonzero(self.rng.random(values.shape[0]) < probability):
            at = int(self.rng.integers(1, values.shape[1]))
            values[row, at:] -= values[row, at]
        return values

    def _keep(
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
        if scope == "rank" and self._telemetry.forgets_dead and name.startswith(OF_PROCESSES):
            kept = kept & (self._times[place] <= self.world.death[rows][:, None])
        self._labels.append(labels)
        self._blocks.append((self._times[place], values, kept))


def _dictionary(codes: IntArray, words: list[str]) -> pa.DictionaryArray:
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(words, type=pa.string()))
