"""Arrays kept on disk once memory would not hold them all."""

from __future__ import annotations

import os
import tempfile
import weakref
from dataclasses import dataclass

import numpy as np

from rca.arrays import Seconds32


class Spool:
    """A temporary file without a name, closed with the last array that refers to it."""

    def __init__(self) -> None:
        file = tempfile.TemporaryFile(prefix="rca-what-if-")  # noqa: SIM115  (lives as long as its arrays)
        weakref.finalize(self, file.close)
        self._file = file

    def write(self, array: Seconds32) -> Spooled:
        """Append an array."""
        at = self._file.seek(0, os.SEEK_END)
        self._file.write(np.ascontiguousarray(array).tobytes())
        self._file.flush()
        return Spooled(self, at, array.shape)

    def read(self, at: int, shape: tuple[int, ...]) -> Seconds32:
        """Read an array back; safe from several threads."""
        size = int(np.prod(shape)) * np.dtype(np.float32).itemsize
        # One call reads 2 GiB at most.
        parts = [
            os.pread(self._file.fileno(), min(1 << 30, size - k), at + k) for k in range(0, size, 1 << 30)
        ]
        return np.frombuffer(b"".join(parts) if len(parts) != 1 else parts[0], np.float32).reshape(shape)


@dataclass(frozen=True)
class Spooled:
    """An array in a spool."""

    spool: Spool
    at: int
    shape: tuple[int, ...]

    def load(self) -> Seconds32:
        """Read it back, read-only."""
        return self.spool.read(self.at, self.shape)
