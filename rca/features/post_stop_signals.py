"""Signals after the last sign of progress: what machines do when a job has stopped, or goes on unseen.

`PostStopSignals` averages the whole time after the last progress. A dead process releases its device memory;
a hung one keeps it, and its peers wait in a collective.

`FinalSignals` looks at the last third of that time only. Rows may be written late, many at once, or end
before the samples do. Then machines work as before. After a stop a waiting collective draws half the power
and keeps few multiprocessors active, links are idle, and dead processes release memory.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.robust import nan_max, nan_mean, nan_min
from rca.window.window import Window

#: Steps without progress from which the time after the last progress is averaged separately.
MIN_STEPS_WITHOUT_PROGRESS = 2.0
#: Channels that only a living process feeds.
PROCESS_CHANNELS = (
    "process_cpu", "runqueue_wait", "process_running", "process_stopped", "container_cpu", "gc_pause",
)  # fmt: skip
#: CPU time per second, in order of preference.
CPU_CHANNELS = ("process_cpu", "container_cpu")
#: Device activity with its full-scale value. Utilisation comes first: a waiting collective keeps it high but
#: few multiprocessors active.
GPU_CHANNELS = (("gpu_util", 100.0), ("sm_active", 1.0))
ACTIVITY_CHANNEL, POWER_CHANNEL, MEMORY_CHANNEL = "sm_active", "gpu_power", "gpu_memory_used"
#: Bytes over links. The network carries the job's collectives only between nodes.
NETWORK_CHANNELS, DEVICE_LINK_CHANNELS = ("net_tx", "net_rx"), ("nvlink_bytes", "pcie_rx", "pcie_tx")
#: Mean activity and memory (relative to before) up to which a device counts as released at once. If one rank
#: dies or hangs, devices of its peers stay busy until their processes are ended.
RELEASED_MAX_ACTIVITY, RELEASED_MAX_MEMORY = 0.1, 0.15
#: Ratios to before are clipped here.
MAX_RATIO = 4.0

#: Share of the time after the last progress, at its end, that `FinalSignals` averages.
FINAL_SHARE = 1 / 3
#: Samples per second in it that are enough, relative to before; an exporter may have ended with the job.
MIN_SAMPLE_RATE = 0.5
#: A job works on if every rank keeps these ratios to before: traffic, activity, memory, CPU time, power.
WORKING_MIN_TRAFFIC, WORKING_MIN_ACTIVITY, WORKING_MIN_MEMORY = 0.5, 0.7, 0.9
WORKING_MIN_CPU, WORKING_MIN_POWER = 0.5, 0.6
#: ... and the median device keeps this ratio of its power.
WORKING_MIN_MEDIAN_POWER = 0.88
#: Watts that a device must have drawn for its power to count. At less, waiting draws as much as work.
MIN_LOADED_WATTS = 120.0
#: A job is idle if the median rank is below these ratios to before: traffic of every link, activity, power or
#: CPU time.
IDLE_MAX_TRAFFIC, IDLE_MAX_ACTIVITY, IDLE_MAX_POWER, IDLE_MAX_CPU = 0.2, 0.5, 0.75, 0.3
#: ... or if one rank holds less than this ratio of its device memory.
RELEASED_RANK_MEMORY = 0.5
#: ... or if one process was stopped in more than this share of the samples.
STOPPED_SHARE = 0.3


@dataclass(frozen=True)
class PostStopSignals:
    """Signals of every rank between the last sign of progress and the end of the window.

    Attributes
    ----------
    stopped : ndarray of shape (n_ranks,), 0..1
        Share of samples in which the process was stopped.
    cpu : ndarray of shape (n_ranks,), ratio
        CPU time used per second, relative to before.
    gpu : ndarray of shape (n_ranks,), 0..1
        Device activity. A rank that waits in a collective keeps it up, a dead rank does not.
    power, memory : ndarray of shape (n_ranks,), ratio
        Power and used memory of the device, relative to before. The driver takes back the memory of a dead
        process; a hung process keeps it.
    traffic : ndarray of shape (n_ranks,), ratio
        Bytes per second relative to before, over the link that fell most. It is near one if only rows are
        late, near zero after a stop.
    sampled : ndarray of shape (n_ranks,), 0/1
        Whether exporters still see the process that they saw before.

    Everything is NaN if it was not measured, or if the job made progress until the end.
    """

    stopped: FloatArray
    cpu: FloatArray
    gpu: FloatArray
    power: FloatArray
    memory: FloatArray
    traffic: FloatArray
    sampled: FloatArray

    @classmethod
    def unknown(cls, n_ranks: int) -> PostStopSignals:
        """Nothing was measured after the last progress, or the job made progress until the end."""
        return cls(*(np.full(n_ranks, np.nan) for _ in range(7)))

    @classmethod
    def from_channels(
        cls,
        before: Mapping[str, FloatArray],
        after: Mapping[str, FloatArray],
        n_ranks: int,
        *,
        networked: bool = True,
    ) -> PostStopSignals:
        """Compare channel means before the last sign of progress and after it.

        Parameters
        ----------
        before, after : mapping of channel to ndarray of shape (n_ranks,)
        networked : bool
            Whether the job's collectives cross the network.
        """
        unknown = np.full(n_ranks, np.nan)
        links = [_ratio(before[name], after[name]) for name in _link_channels(networked) if name in after]
        return cls(
            stopped=after.get("process_stopped", unknown),
            cpu=_first(
                [_ratio(before[name], after[name]) for name in CPU_CHANNELS if name in after], unknown
            ),
            gpu=_first([after[name] / full for name, full in GPU_CHANNELS if name in after], unknown),
            power=_ratio(before[POWER_CHANNEL], after[POWER_CHANNEL]) if POWER_CHANNEL in after else unknown,
            memory=_ratio(before[MEMORY_CHANNEL], after[MEMORY_CHANNEL])
            if MEMORY_CHANNEL in after
            else unknown,
            traffic=nan_min(np.column_stack(links), axis=1) if links else unknown,
            sampled=_sampled(before, after, unknown),
        )

    @property
    def all_devices_released(self) -> bool:
        """Whether all devices of several ranks were released at once; False if any is unknown."""
        return bool(self.gpu.size > 1 and self._released.all())

    @property
    def _released(self) -> BoolArray:
        """Ranks whose device is known to be idle and empty, shape (n_ranks,)."""
        released: BoolArray = (self.gpu <= RELEASED_MAX_ACTIVITY) & (self.memory <= RELEASED_MAX_MEMORY)
        return released

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


@dataclass(frozen=True)
class FinalSignals:
    """Whether machines work or are idle at the end of the window; neither if no channel decides.

    Attributes
    ----------
    working : bool
        No channel shows a stop, and enough channels show work.
    idle : bool
        At least one channel shows a stop.
    cpu_ratio : ndarray of shape (n_ranks,), ratio, or None
        CPU time per second of every rank's own processes, relative to before the stop. NaN if it was not
        measured at the end or before.
    """

    working: bool = False
    idle: bool = False
    cpu_ratio: FloatArray | None = field(default=None, compare=False)

    @classmethod
    def from_channels(
        cls,
        before: Mapping[str, FloatArray],
        last: Mapping[str, FloatArray],
        *,
        networked: bool,
        rank_channels: Container[str] = frozenset(),
    ) -> FinalSignals:
        """Compare channel means before the last sign of progress and at the end of the window.

        Parameters
        ----------
        before, last : mapping of channel to ndarray of shape (n_ranks,)
        networked : bool
            Whether the job's collectives cross the network.
        rank_channels : container of str
            Channels that are measured per rank, not per node.
        """
        traffic = [_known_ratio(name, before, last) for name in _link_channels(networked)]
        traffic = [ratio for ratio in traffic if ratio.size]
        least, median = (np.array([pick(ratio) for ratio in traffic]) for pick in (np.min, np.median))
        active = _known_ratio(ACTIVITY_CHANNEL, before, last)
        memory = _known_ratio(MEMORY_CHANNEL, before, last)
        cpu = (_known_ratio(name, before, last) for name in CPU_CHANNELS)
        used = next((ratio for ratio in cpu if ratio.size), memory[:0])
        power = _known_ratio(POWER_CHANNEL, before, last, floor=MIN_LOADED_WATTS)
        stopped = np.nan_to_num(last.get("process_stopped", np.zeros(1)))
        idle = (
            (stopped > STOPPED_SHARE).any()
            or (memory < RELEASED_RANK_MEMORY).any()
            or (median.size > 0 and median.max() < IDLE_MAX_TRAFFIC)
            or any(
                ratio.size > 0 and np.median(ratio) < limit
                for ratio, limit in (
                    (active, IDLE_MAX_ACTIVITY),
                    (power, IDLE_MAX_POWER),
                    (used, IDLE_MAX_CPU),
                )
            )
        )
        floors = (
            (memory, WORKING_MIN_MEMORY),
            (used, WORKING_MIN_CPU),
            (active, WORKING_MIN_ACTIVITY),
            (power, WORKING_MIN_POWER),
        )
        kept = not idle and all(bool((ratio >= share).all()) for ratio, share in floors)
        if power.size:
            enough = bool(np.median(power) >= WORKING_MIN_MEDIAN_POWER)
        elif least.size:
            enough = bool((least >= WORKING_MIN_TRAFFIC).all())
        else:
            enough = active.size > 0
        cpu_ratio = _rank_cpu_ratio(before, last, rank_channels)
        return cls(working=kept and enough, idle=bool(idle), cpu_ratio=cpu_ratio)


def sampled_until_end(window: Window, edges: FloatArray) -> bool:
    """Whether exporters still sample at the end of the window; series are extended beyond their last sample.

    Parameters
    ----------
    edges : ndarray of shape (n_bins + 3,), Unix seconds
        Bins up to the last sign of progress, the time after it, and the final share of that time.
    """
    times = window.metrics.column("time").to_numpy()
    before = np.count_nonzero((times >= edges[0]) & (times < edges[-3])) / (edges[-3] - edges[0])
    final = np.count_nonzero(times >= edges[-2]) / (edges[-1] - edges[-2])
    return bool(final > 0 and final >= MIN_SAMPLE_RATE * before)


def _link_channels(networked: bool) -> tuple[str, ...]:
    return (*NETWORK_CHANNELS, *DEVICE_LINK_CHANNELS) if networked else DEVICE_LINK_CHANNELS


def _ratio(before: FloatArray, after: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(np.where(before > 0, after / before, np.nan), 0.0, MAX_RATIO)


def _first(found: list[FloatArray], unknown: FloatArray) -> FloatArray:
    """For each rank the value of the first channel that has one."""
    result = unknown
    for values in found:
        result = np.where(np.isfinite(result), result, values)
    return result


def _sampled(
    before: Mapping[str, FloatArray], after: Mapping[str, FloatArray], unknown: FloatArray
) -> FloatArray:
    result = unknown.copy()
    for name in PROCESS_CHANNELS:
        if name in before:
            seen = np.isfinite(before[name])
            still = np.isfinite(after[name]).astype(float)
            result = np.where(seen, np.fmax(result, still), result)
    return result


def _rank_cpu_ratio(
    before: Mapping[str, FloatArray], last: Mapping[str, FloatArray], rank_channels: Container[str]
) -> FloatArray | None:
    """CPU time at the end relative to before, per rank, by the first channel that knew the rank before.

    If the process is gone, its container's CPU time does not count for it.
    """
    channels = [name for name in CPU_CHANNELS if name in rank_channels and name in before and name in last]
    if not channels:
        return None
    used = np.full(before[channels[0]].size, np.nan)
    known = np.zeros(used.size, dtype=bool)
    for name in channels:
        fresh = ~known & np.isfinite(before[name]) & (before[name] > 0)
        used[fresh] = last[name][fresh] / before[name][fresh]
        known |= np.isfinite(before[name])
    return used


def _known_ratio(
    name: str, before: Mapping[str, FloatArray], last: Mapping[str, FloatArray], floor: float = 0.0
) -> FloatArray:
    """Ratio to before, of the ranks where both are known and the value before is above the floor."""
    if name not in before or name not in last:
        return np.zeros(0)
    known = np.isfinite(before[name]) & np.isfinite(last[name]) & (before[name] > floor)
    return np.asarray(last[name][known] / before[name][known])
