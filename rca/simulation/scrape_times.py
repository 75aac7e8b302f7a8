"""When exporters are scraped, and when they last looked themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.simulation.finished_run import World

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
