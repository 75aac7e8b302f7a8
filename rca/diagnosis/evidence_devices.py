"""Names the device behind evidence of a network or a disk: the port or drive that deviates most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc

from rca.arrays import BoolArray
from rca.diagnosis.result import Cause, Diagnosis, Evidence
from rca.features.resource_evidence import RESOURCES
from rca.window.node_names import same_nodes
from rca.window.signals.series import SeriesSet, rows_feeding
from rca.window.window import Window

#: Resources of which a node has several devices; GPUs are known by their ranks.
_RESOURCES = ("nic", "fabric", "storage")
#: Channels whose series name a device.
DEVICE_CHANNELS = frozenset(each.channel for name in _RESOURCES for each in RESOURCES[name])
#: Causes whose evidence is looked up.
MAX_CAUSES = 4


def with_devices(diagnosis: Diagnosis, window: Window) -> Diagnosis:
    """The diagnosis with the device of each such evidence for its first causes.

    Parameters
    ----------
    diagnosis : Diagnosis
        With the times of its stragglers.
    """
    wanted = {each.signal for cause in diagnosis.causes[:MAX_CAUSES] for each in cause.evidence}
    wanted &= DEVICE_CHANNELS
    if not wanted or window.metrics.num_rows == 0:
        return diagnosis
    rows = rows_feeding(window.metrics, wanted)
    rows = rows.filter(pc.is_valid(rows.column("device")))
    if rows.num_rows == 0:
        return diagnosis
    series = SeriesSet.from_window(replace(window, metrics=rows))
    causes = []
    for cause in diagnosis.causes[:MAX_CAUSES]:
        evidence = [_with_device(each, cause, diagnosis, series, window) for each in cause.evidence]
        causes.append(cause.model_copy(update={"evidence": evidence}))
    return diagnosis.model_copy(update={"causes": [*causes, *diagnosis.causes[MAX_CAUSES:]]})


def _with_device(
    evidence: Evidence, cause: Cause, diagnosis: Diagnosis, series: SeriesSet, window: Window
) -> Evidence:
    """The evidence with the device whose mean over the late steps is the highest."""
    if evidence.signal not in DEVICE_CHANNELS or evidence.direction == "against":
        return evidence
    feeds = [evidence.signal in signal.all_channels() for signal in series.signals]
    mine = _belongs(series, cause, window) & np.array(feeds, dtype=bool)[series.signal]
    if not mine.any():
        return evidence
    means = series.bin_means(_span(cause, diagnosis, window))[:, 0]
    found = np.where(mine & np.isfinite(means), means, -np.inf)
    worst = int(found.argmax())
    if not found[worst] > 0:
        return evidence
    return evidence.model_copy(update={"device": series.device_names[int(series.device[worst])]})


def _belongs(series: SeriesSet, cause: Cause, window: Window) -> BoolArray:
    """Series of a cause's ranks or nodes with a device, shape (n_series,)."""
    job_nodes = window.job.topology.node_names
    node = np.append(same_nodes(series.node_names, job_nodes), -1)[series.node]
    blamed = [index for index, name in enumerate(job_nodes) if name in cause.nodes]
    held = np.isin(series.rank, cause.ranks) | np.isin(node, blamed)
    return np.asarray(held & (series.device >= 0))


def _span(cause: Cause, diagnosis: Diagnosis, window: Window) -> Sequence[float]:
    """Begin and end of the late steps of the cause's ranks; the whole window where they are not known."""
    own = [each for each in diagnosis.stragglers if set(each.ranks) & set(cause.ranks)]
    began = [each.since.timestamp() for each in own if each.since is not None]
    ended = [each.until.timestamp() for each in own if each.until is not None]
    begin = min(began, default=window.job.start)
    end = max(ended) if len(ended) == len(own) and ended else window.job.end
    return (begin, end) if end > begin else (window.job.start, window.job.end)
