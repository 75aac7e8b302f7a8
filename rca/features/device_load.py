"""Which devices are under load, and at which rate a link then has to run.

An idle GPU lowers the generation of its PCIe link to save power. So a low one is evidence only under load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.work import Work
from rca.robust import zero_if_nan

#: Phases in which a rank's device has nothing to do.
HOST_PHASES = ("data_loading_seconds", "checkpoint_seconds", "gc_seconds")
#: A device that is idle for a larger share of its steps is not under load.
MAX_IDLE = 0.5
#: Channel of activity -> its lowest mean under load, in its own unit.
MIN_ACTIVITY: Mapping[str, float] = {"sm_active": 0.1, "gpu_util": 20.0}
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
