"""Where the time of a rank's GPU goes in a profiler trace: idle, computing, and communicating alone.

References
----------
facebookresearch/HolisticTraceAnalysis, ``get_temporal_breakdown`` and ``get_comm_comp_overlap`` with
``include_last_profiler_step``: the time is that from the first begin of a kernel to the last end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray
from rca.sources.profiler.trace import RankTrace

#: Ranks in the notes of one window.
MAX_RANKS = 16


class DeviceTimes(NamedTuple):
    """Seconds of one GPU, of all its streams together.

    Attributes
    ----------
    total : float
        From the first begin to the last end of a kernel or a copy.
    idle, compute : float
        Without any work; with a kernel that is neither a collective nor a copy.
    communication, exposed : float
        With a collective; with a collective while no kernel computes.
    """

    total: float
    idle: float
    compute: float
    communication: float
    exposed: float

    @property
    def overlap(self) -> float:
        """Share of the communication that runs while a kernel computes; NaN without communication."""
        return 1.0 - self.exposed / self.communication if self.communication > 0 else np.nan


def device_times(trace: RankTrace) -> DeviceTimes | None:
    """The times of one rank; None if its trace has no work on a GPU."""
    spans = [(start, length) for _, start, length, _ in trace.collectives] if trace.has_nccl else []
    collectives, kernels = _merged(spans), _merged(trace.kernels)
    busy = _merged([*trace.kernels, *trace.copies, *spans])
    if not busy.size:
        return None
    total = float(busy[-1, 1] - busy[0, 0])
    communication, compute = _length(collectives), _length(kernels)
    both = _length(_merged_spans(np.concatenate([collectives, kernels])))
    overlapped = communication + compute - both
    return DeviceTimes(total, total - _length(busy), compute, communication, communication - overlapped)


def notes_of(traces: Sequence[RankTrace]) -> list[str]:
    """A sentence for each of the first `MAX_RANKS` ranks with work on a GPU."""
    found = []
    for trace in traces[:MAX_RANKS]:
        times = device_times(trace)
        if times is None:
            continue
        shares = 100 * np.array([times.idle, times.compute, times.exposed]) / max(times.total, 1e-12)
        text = f"rank {trace.rank or 0}: its GPU is idle for {shares[0]:.1f} % of its time, computes for "
        text += f"{shares[1]:.1f} %, and communicates alone for {shares[2]:.1f} %"
        if np.isfinite(times.overlap):
            text += f"; {100 * times.overlap:.1f} % of its communication is overlapped"
        found.append(text)
    return found


def _merged(spans: Sequence[tuple[float, float]]) -> FloatArray:
    """Begin and end of the union of spans that are given by start and duration; shape (n, 2), by begin."""
    given = np.array(spans, dtype=np.float64).reshape(-1, 2)
    given[:, 1] += given[:, 0]
    return _merged_spans(given)


def _merged_spans(spans: FloatArray) -> FloatArray:
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    latest = np.maximum.accumulate(spans[:, 1])
    first = np.append(True, spans[1:, 0] > latest[:-1])
    begins = np.flatnonzero(first)
    return np.stack([spans[begins, 0], latest[np.append(begins[1:], len(spans)) - 1]], axis=1)


def _length(spans: FloatArray) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())
