"""Whether machines lately, after the last row, work on or stand still.

Rows may be late, written many at once, or cut before samples were; then every machine goes on as before. A
job that stopped shows it: a collective that spins draws half the power and takes few multiprocessors, links
are idle, the dead give memory back.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import numpy as np

from rca.arrays import FloatArray
from rca.features.aftermath import CPU, LINKS, MEMORY, NETWORK, POWER
from rca.telemetry.window import Window

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
