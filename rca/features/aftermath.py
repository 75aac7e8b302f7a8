"""What machines still show after the last step: the dead fall silent, the hung wait or stand still."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.robust import nan_max, nan_mean, nan_min

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
