"""CPU time by mode as shares of the node, whether it was told per core, on average, or summed over cores."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.arrays import FloatArray
from rca.telemetry.catalogue.host import CPU_MODES
from rca.telemetry.placement import Level

IDLE = "node_cpu_idle"


def cpu_shares(values: Mapping[str, FloatArray], level: Mapping[str, Level]) -> dict[str, FloatArray]:
    """CPU channels relative to all of the CPU time that was told, idle included.

    ``sum by (mode)`` over 96 cores makes 48 of a node that is half busy, the mean over cores 0.5. All modes
    together are as many cores as there are, or one.

    Parameters
    ----------
    values : mapping of channel to ndarray of shape (n_ranks, n_bins)
    level : mapping of channel to {"rank", "node", "global"}

    Returns
    -------
    dict of str to ndarray of shape (n_ranks, n_bins)
        Only what changes: nothing without idle time, which tells how many cores there are, and nothing that
        was measured elsewhere.
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
