"""The expected answer about each real window, and why nothing more is required."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

WINDOWS = Path(__file__).parents[2] / "data" / "windows"


class Expected(NamedTuple):
    """The failure mode, exactly the ranks to name, a cause that has to come first; may it stay open?"""

    mode: str
    ranks: frozenset[int]
    causes: frozenset[str]
    open: bool = False

    @property
    def exit_codes(self) -> set[int]:
        certain = {"healthy": 0, "fail_slow": 10, "fail_stop": 20}[self.mode]
        return {certain, 30} if self.open else {certain}


def slow(ranks: set[int], *causes: str) -> Expected:
    return Expected("fail_slow", frozenset(ranks), frozenset(causes))


HEALTHY = Expected("healthy", frozenset(), frozenset())

EXPECTED = {
    "healthy": HEALTHY,
    # Somebody used the CPU for a moment: visible in the counters, not in the step time.
    # Nobody may be blamed for it; calling it healthy may stay open: something did happen.
    "healthy-short-hiccup": HEALTHY._replace(open=True),
    # The stand-in device has no clock to look at, so a duty cycle reads as either of the two.
    "compute-duty-cycle": slow({6}, "gpu_throttling", "gpu_contention"),
    "cpu-contention-node": slow({2, 3}, "cpu_contention"),
    "garbage-collection": slow({1}, "runtime_gc"),
    # One end of a link cannot be told from its neighbour by durations; the queue on node-2 tells.
    "nic-rate-limited": slow({4, 5}, "nic_degradation", "network_congestion"),
    "slow-dataset": slow({7}, "data_loader_stall"),
    "killed-rank": Expected("fail_stop", frozenset({4}), frozenset({"process_crash"})),
}

#: With phases only, a slow link slows everybody alike: there is nothing that tells whose it is.
UNPLACEABLE_WITHOUT_METRICS = frozenset({"nic-rate-limited"})
