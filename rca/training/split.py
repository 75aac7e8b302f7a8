"""Train, validation and test by scenario: a hash of the group decides, so a split never depends on order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import count, islice
from typing import Literal

import numpy as np

Part = Literal["train", "calibration", "validation", "test"]

#: Cumulative shares, in order.
SHARES: tuple[tuple[Part, float], ...] = (
    ("train", 0.62),
    ("calibration", 0.74),
    ("validation", 0.88),
    ("test", 1.0),
)


def scenario_group(seed: int) -> str:
    """Group of everything that comes from the simulated scenario of a seed."""
    return f"simulation-{seed}"


def part_of(group: str) -> Part:
    """Part a group belongs to; the same in every run and on every machine."""
    draw = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") / 2**64
    return next(part for part, ceiling in SHARES if draw < ceiling)


def seeds_of(part: Part, n: int) -> list[int]:
    """The first seeds whose simulated scenarios belong to a part, shape (n,): always the same ones."""
    return list(islice((seed for seed in count() if part_of(scenario_group(seed)) == part), n))


def mask(parts: Sequence[str], part: Part) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which windows belong to the part, shape (n_windows,)."""
    return np.array([each == part for each in parts], dtype=bool)
