"""Whether machines lately, after the last row, work on or stand still.

Rows may be late, written many at once, or cut before samples were; then every machine goes on as before. A
job that stopped shows it: a collective that spins draws half the power and takes few multiprocessors, links
are idle, the dead give memory back.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.robust import nan_max, nan_mean, nan_min
from rca.telemetry.window import Window

#: Steps of silence from which the time after the last sign of progress is looked at by itself.
MIN_SILENCE = 2.0
#: Channels that only a living process feeds.
ALIVE = ("process_cpu", "runqueue_wait", "process_running", "process_stopped", "container_cpu", "gc_pause")
#: Channels that tell how busy a rank is; of GPUs with the value that counts as fully busy. Utilisation comes
#: first: a collective that spins keeps it near its top, but few multiprocessors active.
CPU = ("process_cpu", "container_cpu")
GPU = (("gpu_util", 100.0), ("sm_active", 1.0))
POWER, MEMORY = "gpu_power", "gpu_memory_used"
#: A job of several ranks whose every device was idle and empty for nearly all of the time is gone as a whole.
#: Peers of a dead or hung rank spin in their collective until somebody ends them.
LEFT_BUSY, LEFT_HELD = 0.1, 0.15
#: Bytes over links: only a job that goes on exchanging moves as many as before over all of them. The network
#: is the job's only where it has several nodes.
NETWORK, LINKS = ("net_tx", "net_rx"), ("nvlink_bytes", "pcie_rx", "pcie_tx")
#: Share of the time after the last row, at its end, that is looked at.
LATELY = 1 / 3
#: ... if it was sampled at least this often, relative to before: an exporter that died tells nothing.
SAMPLED = 0.5
ACTIVE = "sm_active"
#: Whoever works on keeps so much of before, on every rank.
STILL_MOVED, STILL_ACTIVE, STILL_HELD, STILL_USED = 0.5, 0.7, 0.9, 0.5
#: Devices that drew so many watts work on if the median keeps this much, and each the last: a device that
#: waits draws less, unless it never drew much.
LOADED, STEADY, STILL_DRAWN = 120.0, 0.88, 0.6
#: Whoever stands still keeps, in the median, less than this of traffic, multiprocessors, power, CPU time; or
#: any rank gave its device memory back, or was seen stopped.
IDLE_MOVED, IDLE_ACTIVE, IDLE_DRAWN, IDLE_USED, FREED, STOPPED = 0.2, 0.5, 0.75, 0.3, 0.5, 0.3


@dataclass(frozen=True)
class Aftermath:
    """Signals of every rank between the last sign of progress and the end of the window.

    Attributes
    ----------
    stopped : ndarray of shape (n_ranks,), 0..1
        Share of looks that found its process stopped.
    cpu : ndarray of shape (n_ranks,), ratio
        CPU time used per second, relative to before.
    gpu : ndarray of shape (n_ranks,), 0..1
        How busy its GPU was: who waits in a collective spins, who is dead does not.
    power, memory : ndarray of shape (n_ranks,), ratio
        Power its GPU drew, and device memory in use, relative to before: the driver takes back what a dead
        process held, a hung one keeps it.
    traffic : ndarray of shape (n_ranks,), ratio
        Bytes per second over its links relative to before, of the link that fell the most: rows that are only
        late leave it at one, whatever has stopped near zero.
    sampled : ndarray of shape (n_ranks,), 0/1
        Whether exporters still saw the process that they saw before.

    Everything is NaN where it was not measured, or where the job did not fall silent.
    """

    stopped: FloatArray
    cpu: FloatArray
    gpu: FloatArray
    power: FloatArray
    memory: FloatArray
    traffic: FloatArray
    sampled: FloatArray

    @classmethod
    def unknown(cls, n_ranks: int) -> Aftermath:
        """Nothing was measured after the end, or there was no end."""
        return cls(*(np.full(n_ranks, np.nan) for _ in range(7)))

    @classmethod
    def from_channels(
        cls,
        before: Mapping[str, FloatArray],
        after: Mapping[str, FloatArray],
        n_ranks: int,
        *,
        networked: bool = True,
    ) -> Aftermath:
        """Compare channel means before the last sign of progress and after it.

        Parameters
        ----------
        before, after : mapping of channel to ndarray of shape (n_ranks,)
        n_ranks : int
        networked : bool
            Whether the job's exchange crosses the network.
        """
        unknown = np.full(n_ranks, np.nan)
        links = (*NETWORK, *LINKS) if networked else LINKS
        return cls(
            stopped=after.get("process_stopped", unknown),
            cpu=_first([_ratio(before[name], after[name]) for name in CPU if name in after], unknown),
            gpu=_first([after[name] / full for name, full in GPU if name in after], unknown),
            power=_ratio(before[POWER], after[POWER]) if POWER in after else unknown,
            memory=_ratio(before[MEMORY], after[MEMORY]) if MEMORY in after else unknown,
            traffic=_least([_ratio(before[name], after[name]) for name in links if name in after], unknown),
            sampled=_sampled(before, after, unknown),
        )

    @property
    def everybody_left(self) -> bool:
        """Whether all devices of several ranks were given back at once; False where any is unknown."""
        return bool(self.gpu.size > 1 and self._gone.all())

    @property
    def some_stayed(self) -> bool:
        """Whether most devices were given back at once, and some are known to be held or busy still."""
        there = (self.gpu > LEFT_BUSY) | (self.memory > LEFT_HELD)
        return bool(there.any() and 2 * self._gone.sum() > self.gpu.size)

    @property
    def _gone(self) -> BoolArray:
        """Whose device is known to be idle and empty, shape (n_ranks,)."""
        gone: BoolArray = (self.gpu <= LEFT_BUSY) & (self.memory <= LEFT_HELD)
        return gone

    def rank_features(self) -> dict[str, FloatArray]:
        """Columns of the rank table."""
        return {
            "stopped_after": self.stopped,
            "cpu_after": self.cpu,
            "gpu_after": self.gpu,
            "power_after": self.power,
            "memory_after": self.memory,
            "traffic_after": self.traffic,
            "sampled_after": self.sampled,
        }

    def job_features(self) -> dict[str, float]:
        """Columns of the job table."""
        return {
            "max_stopped_after": float(nan_max(self.stopped[:, None])[0]),
            "mean_cpu_after": float(nan_mean(self.cpu[:, None])[0]),
            "mean_gpu_after": float(nan_mean(self.gpu[:, None])[0]),
            "mean_power_after": float(nan_mean(self.power[:, None])[0]),
            "min_memory_after": float(nan_min(self.memory[:, None])[0]),
            "mean_traffic_after": float(nan_mean(self.traffic[:, None])[0]),
            "mean_sampled_after": float(nan_mean(self.sampled[:, None])[0]),
        }


def _ratio(before: FloatArray, after: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(np.where(before > 0, after / before, np.nan), 0.0, 4.0)


def _first(found: list[FloatArray], unknown: FloatArray) -> FloatArray:
    """The first channel that knows each rank."""
    result = unknown
    for values in found:
        result = np.where(np.isfinite(result), result, values)
    return result


def _least(found: list[FloatArray], unknown: FloatArray) -> FloatArray:
    """The smallest of the known."""
    return nan_min(np.column_stack(found), axis=1) if found else unknown


def _sampled(
    before: Mapping[str, FloatArray], after: Mapping[str, FloatArray], unknown: FloatArray
) -> FloatArray:
    result = unknown.copy()
    for name in ALIVE:
        if name in before:
            seen = np.isfinite(before[name])
            still = np.isfinite(after[name]).astype(float)
            result = np.where(seen, np.fmax(result, still), result)
    return result


@dataclass(frozen=True)
class Lately:
    """What was measured of every rank's machine lately; neither where nothing tells.

    Attributes
    ----------
    works_on : bool
        Nothing speaks for an end, and enough against it.
    stands_still : bool
        Something does.
    used : ndarray of shape (n_ranks,), ratio, or None
        CPU time per second of every rank's own processes, relative to before; NaN where it was not measured,
        or not any more.
    """

    works_on: bool = False
    stands_still: bool = False
    used: FloatArray | None = field(default=None, compare=False)

    @classmethod
    def from_channels(
        cls,
        before: Mapping[str, FloatArray],
        last: Mapping[str, FloatArray],
        *,
        networked: bool,
        own: Container[str] = frozenset(),
    ) -> Lately:
        """Compare channel means before the last sign of progress and lately.

        Parameters
        ----------
        before, last : mapping of channel to ndarray of shape (n_ranks,)
        networked : bool
            Whether the job's exchange crosses the network.
        own : container of str
            Channels that are measured of every rank by itself, not of its node.
        """
        moved = [_kept(name, before, last) for name in ((*NETWORK, *LINKS) if networked else LINKS)]
        moved = [ratio for ratio in moved if ratio.size]
        least, most = (np.array([pick(ratio) for ratio in moved]) for pick in (np.min, np.median))
        active, held = _kept(ACTIVE, before, last), _kept(MEMORY, before, last)
        used = next((ratio for ratio in (_kept(name, before, last) for name in CPU) if ratio.size), held[:0])
        drawn = _kept(POWER, before, last, floor=LOADED)
        stopped = np.nan_to_num(last.get("process_stopped", np.zeros(1)))
        still = (
            (stopped > STOPPED).any()
            or (held < FREED).any()
            or (most.size > 0 and most.max() < IDLE_MOVED)
            or any(
                ratio.size > 0 and np.median(ratio) < idle
                for ratio, idle in ((active, IDLE_ACTIVE), (drawn, IDLE_DRAWN), (used, IDLE_USED))
            )
        )
        floors = ((held, STILL_HELD), (used, STILL_USED), (active, STILL_ACTIVE), (drawn, STILL_DRAWN))
        kept = not still and all(bool((ratio >= share).all()) for ratio, share in floors)
        if drawn.size:
            enough = bool(np.median(drawn) >= STEADY)
        elif least.size:
            enough = bool((least >= STILL_MOVED).all())
        else:
            enough = active.size > 0
        return cls(works_on=kept and enough, stands_still=bool(still), used=_used(before, last, own))


def sampled_lately(window: Window, edges: FloatArray) -> bool:
    """Whether exporters went on sampling: a series speaks for some time beyond its last sample.

    Parameters
    ----------
    window : Window
    edges : ndarray of shape (n_bins + 3,), Unix seconds
        Bins up to the last sign of progress, what came after it, and what is lately.
    """
    times = window.metrics.column("time").to_numpy()
    before = np.count_nonzero((times >= edges[0]) & (times < edges[-3])) / (edges[-3] - edges[0])
    lately = np.count_nonzero(times >= edges[-2]) / (edges[-1] - edges[-2])
    return bool(lately > 0 and lately >= SAMPLED * before)


def _used(
    before: Mapping[str, FloatArray], last: Mapping[str, FloatArray], own: Container[str]
) -> FloatArray | None:
    """Ratio of lately to before of every rank, by the first channel that knew it before the end.

    A process that is seen no more took no time that its container or its node could tell.
    """
    channels = [name for name in CPU if name in own and name in before and name in last]
    if not channels:
        return None
    used = np.full(before[channels[0]].size, np.nan)
    known = np.zeros(used.size, dtype=bool)
    for name in channels:
        fresh = ~known & np.isfinite(before[name]) & (before[name] > 0)
        used[fresh] = last[name][fresh] / before[name][fresh]
        known |= np.isfinite(before[name])
    return used


def _kept(
    name: str, before: Mapping[str, FloatArray], last: Mapping[str, FloatArray], floor: float = 0.0
) -> FloatArray:
    """Ratio of lately to before of the ranks for which both are known, and before was above the floor."""
    if name not in before or name not in last:
        return np.zeros(0)
    known = np.isfinite(before[name]) & np.isfinite(last[name]) & (before[name] > floor)
    return np.asarray(last[name][known] / before[name][known])
