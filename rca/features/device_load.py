"""How busy devices are: which are under load, whose activity grew, and at which rate a link has to run.

An idle GPU lowers the generation of its PCIe link to save power. So a low one is evidence only under load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.slow_segment import segment_mean
from rca.features.work import Work
from rca.robust import nan_median, zero_if_nan

#: Phases in which a rank's device works on its own.
DEVICE_PHASES = ("forward_seconds", "backward_seconds", "optimizer_seconds")
#: Channel that measures how busy a device is, 0 to 1.
SM_ACTIVE = "sm_active"
#: Share of the step that a rank must compute for its activity to be compared.
MIN_COMPUTE_SHARE = 0.05
#: Activity per computing time is clipped at this many times the median rank's.
MAX_ACTIVITY_RATIO = 4.0
#: Share by which a device's work per step has to grow for one unit.
BUSIER = 0.25
#: Phases in which a rank's device has nothing to do.
HOST_PHASES = ("data_loading_seconds", "checkpoint_seconds", "gc_seconds")
#: A device that is idle for a larger share of its steps is not under load.
MAX_IDLE = 0.5
#: Channel of activity -> its lowest mean under load, in its own unit.
MIN_ACTIVITY: Mapping[str, float] = {SM_ACTIVE: 0.1, "gpu_util": 20.0}
#: Channel of the state that an idle device lowers, down to this value.
IDLED, LOWEST = "pcie_gen", 1.0
#: A fault costs a whole generation. A mean that is lower by less comes from single samples of an idle device.
MIN_LOST = 0.75


@dataclass(frozen=True)
class DeviceLoad:
    """How the steps use the devices.

    Attributes
    ----------
    idle : ndarray of shape (n_ranks,), share
        Of the slow segment: waiting, loading, checkpoints and garbage collection. 0 if nothing of it is
        timed, because a rank works in its steps.
    """

    idle: FloatArray

    @classmethod
    def from_work(cls, work: Work, inside: BoolArray) -> DeviceLoad:
        """Of the steps in `inside`, ndarray of shape (n_steps,), bool."""
        spent = [work.wait, *(work.phases[name] for name in HOST_PHASES if name in work.phases)]
        weight = inside.astype(float)
        seconds = np.sum([zero_if_nan(each) @ weight for each in spent], axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return cls(np.clip(seconds / (zero_if_nan(work.step) @ weight), 0.0, 1.0))


def activity_per_compute(work: Work, active: FloatArray | None, inside: BoolArray) -> FloatArray:
    """Device activity per computing time in some steps, relative to the median rank.

    Peers of a slow rank wait, and a waiting device is active as well. So activity is divided by the share of
    the step that the rank computes. Only work of another process raises this ratio.

    Parameters
    ----------
    active : ndarray of shape (n_ranks,), optional
        Mean activity over these steps.
    inside : ndarray of shape (n_steps,), bool

    Returns
    -------
    ndarray of shape (n_ranks,), ratio
        NaN if activity or computing time was not measured.
    """
    phases = [work.phases[name] for name in DEVICE_PHASES if name in work.phases]
    if active is None or not phases or not inside.any():
        return np.full(work.own.shape[0], np.nan)
    computing = np.nansum(phases, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        compute_share = segment_mean(computing, inside) / segment_mean(work.step, inside)
        per_compute = np.where(compute_share > MIN_COMPUTE_SHARE, active / compute_share, np.nan)
        usual = nan_median(per_compute[None, :], axis=1)[0]
        return np.where(usual > 0, np.minimum(per_compute / usual, MAX_ACTIVITY_RATIO), np.nan)


def activity_growth(
    work: Work, within: Mapping[str, FloatArray], without: Mapping[str, FloatArray], inside: BoolArray
) -> FloatArray:
    """Growth of each device's active seconds per step over its own other steps, shape (n_ranks,), units.

    The job's work per step is the same unless a stranger adds to it. What grows on all devices is more work
    of the job.

    Parameters
    ----------
    within, without : mapping of channel to ndarray of shape (n_ranks,)
        Means over these steps and over the others.
    inside : ndarray of shape (n_steps,), bool
    """
    name = next((each for each in MIN_ACTIVITY if each in within), None)
    if name is None or inside.all() or not inside.any():
        return np.full(work.step.shape[0], np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        longer = segment_mean(work.step, inside) / segment_mean(work.step, ~inside)
        grown: FloatArray = within[name] / without[name] * longer - 1.0
    if 2 * int((np.nan_to_num(grown) >= BUSIER).sum()) > grown.size:
        grown = grown - nan_median(grown[None, :], axis=1)[0]
    return np.where(np.isfinite(grown), grown / BUSIER, np.nan)


def link_maximum(
    channel: str,
    highest: str,
    inside: Mapping[str, FloatArray],
    outside: Mapping[str, FloatArray],
    load: DeviceLoad | None,
) -> FloatArray:
    """Value that a healthy link has on average, shape (n_ranks,); NaN where the device is not under load.

    Parameters
    ----------
    channel, highest : str
        Channels of the link's state and of its maximum. Without the latter, the maximum is the highest state
        that any rank reaches.
    inside, outside : mapping of channel to ndarray of shape (n_ranks,)
        Means over the slow segment and over the rest of the window.
    load : DeviceLoad or None
        None if there are no steps. Then only signals of activity show load.
    """
    reached = np.fmax(inside[channel], outside[channel])
    best = np.full(reached.shape, np.nanmax(reached)) if np.isfinite(reached).any() else reached
    stated = inside.get(highest)
    maximum = best if stated is None else np.where(np.isfinite(stated), stated, best)
    idle = np.full(reached.shape, np.nan) if load is None else load.idle
    loaded = idle <= MAX_IDLE
    active = _active(inside)
    if active is not None:
        loaded = np.where(np.isfinite(active), (active > 0) & ~(idle > MAX_IDLE), loaded)
    if channel == IDLED:
        maximum = maximum - np.nan_to_num(idle) * np.maximum(maximum - LOWEST, 0.0)
        current = inside[channel]
        maximum = np.where(maximum - current < MIN_LOST, current, maximum)
    return np.where(loaded, maximum, np.nan)


def _active(inside: Mapping[str, FloatArray]) -> FloatArray | None:
    """1 where a device is active, 0 where not, NaN where it is unknown; None without any such signal."""
    found: FloatArray | None = None
    for name, least in MIN_ACTIVITY.items():
        values = inside.get(name)
        if values is None:
            continue
        active = np.where(np.isfinite(values), (values >= least).astype(float), np.nan)
        # The first signal that a rank has decides: utilisation also counts kernels that wait.
        found = active if found is None else np.where(np.isfinite(found), found, active)
    return found
