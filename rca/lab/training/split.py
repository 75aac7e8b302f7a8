"""Train, validation and test by scenario: a hash of the group decides, so a split never depends on order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

import numpy as np

from rca.arrays import BoolArray
from rca.sources.labels import Part, hashed_part

#: Shares of the simulated scenarios, in order.
SHARES: dict[Part, float] = {"train": 0.62, "calibration": 0.12, "validation": 0.14, "test": 0.12}


def scenario_group(seed: int) -> str:
    """Group of everything that comes from the simulated scenario of a seed."""
    return f"simulation-{seed}"


def part_of(group: str) -> Part:
    """Part a group belongs to; the same in every run and on every machine."""
    return hashed_part(group, SHARES)


def seeds_of(part: Part, n: int) -> list[int]:
    """The first seeds whose simulated scenarios belong to a part, shape (n,): always the same ones."""
    return list(islice((seed for seed in count() if part_of(scenario_group(seed)) == part), n))


def mask(parts: Sequence[str], part: Part) -> BoolArray:
    """Which windows belong to the part, shape (n_windows,)."""
    return np.array([each == part for each in parts], dtype=bool)
