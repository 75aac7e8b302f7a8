"""Every threshold of the monitor and the controller, with its unit and its source."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rca.errors import InvalidInput


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the monitor and the controller; `SOURCES` says where the defaults come from.

    Attributes
    ----------
    slow_ratio : float
        A worker is slow if a sample takes it this many times as long as its peers.
    short_seconds, long_seconds : float
        Lengths of the two windows.
    least_batches : int
        Fewer batches in a window say nothing.
    steady_share : float
        A worker is deterministic if its ratio has stayed within this share of itself since the start.
    least_gain : float
        Batch sizes change if the step gets shorter by this share at least.
    """

    slow_ratio: float = 4 / 3
    short_seconds: float = 60.0
    long_seconds: float = 600.0
    least_batches: int = 3
    steady_share: float = 0.1
    least_gain: float = 0.05

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise InvalidInput(f"{each.name} is {getattr(self, each.name)}", hint="it has to be positive")
        if self.slow_ratio <= 1:
            raise InvalidInput(f"slow_ratio is {self.slow_ratio}", hint="it has to be above 1")
        if self.short_seconds >= self.long_seconds:
            raise InvalidInput(
                f"the short window has {self.short_seconds} s, the long one {self.long_seconds} s",
                hint="the long window has to be longer",
            )


SOURCES = {
    "slow_ratio": "NVIDIA Resiliency Extension: reference / own time below 0.75 is a straggler",
    "short_seconds": "ours: a tenth of the long window",
    "long_seconds": "reported mean length of a slow-compute episode in one fleet: 10 minutes",
    "least_batches": "ours: a median of three ignores one outlier, such as the first step",
    "steady_share": "ours: the spread of medians of healthy ranks in data/windows is below it",
    "least_gain": "ours: changes below the noise of a step time are not worth a switch",
}
