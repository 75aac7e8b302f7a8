"""A lookup table mapped from a file: what a rank loses first when memory gets short."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

TABLE_BYTES = 16 * 1024 * 1024
TOUCHES = 400


class LookupTable:
    """Read at random pages, every step, on every rank; the pages are charged to the rank's group."""

    def __init__(self, path: Path, seed: int) -> None:
        # Written by the rank itself: a page is charged to whoever brings it in.
        with path.open("wb") as file:
            file.write(bytes(TABLE_BYTES))
            file.flush()
            os.fsync(file.fileno())  # dirty pages could not be reclaimed
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), TABLE_BYTES, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)
        self._draw = np.random.default_rng(seed)
        self._pages = TABLE_BYTES // mmap.PAGESIZE
        self.checksum = 0

    def touch(self) -> None:
        """Look some entries up."""
        for page in self._draw.integers(self._pages, size=TOUCHES):
            self.checksum ^= self._map[int(page) * mmap.PAGESIZE]
