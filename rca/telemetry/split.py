"""Parts of a collection: a hash of the group decides, so a split never depends on order or on neighbours."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import accumulate
from typing import Literal

Part = Literal["train", "calibration", "validation", "test"]


def part_of(group: str, shares: Mapping[Part, float]) -> Part:
    """Part a group belongs to; the same in every run and on every machine.

    Parameters
    ----------
    group : str
        What must not be split: everything that comes from one scenario.
    shares : mapping of part to float
        In order; they add up to 1.
    """
    draw = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") / 2**64
    parts = list(shares)
    ceilings = accumulate(shares.values())
    # Rounded shares may add up to a hair less than 1.
    return next((part for part, ceiling in zip(parts, ceilings, strict=True) if draw < ceiling), parts[-1])
