"""How a data set is cut into shards, and their order in each epoch.

A shard is a range of sample numbers. Positions count the shards through all epochs in the order in which
they are handed out. The order depends on the seed and the epoch only, on any machine and version of numpy.

The order of shards is a cipher on their numbers [1]_: one shard is found without the order of all others. The
order of samples in a shard comes from the raw stream of a bit generator, which numpy keeps.

References
----------
.. [1] Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002: the Feistel cipher.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import isqrt

import numpy as np

from rca.arrays import IntArray
from rca.errors import InvalidInput

MAX_SAMPLES = 1 << 50
#: Most shards of an epoch, and most samples of a shard: workers hold a permutation of them in memory.
MAX_SHARDS, MAX_SHARD = 1 << 20, 1 << 24
MAX_EPOCHS = 10_000
MAX_LEASE_SECONDS = 86_400.0
MAX_SEED = (1 << 63) - 1
#: Rounds of the cipher; six suffice where each half has many values.
_ROUNDS = 8


@dataclass(frozen=True)
class Shard:
    """A range of samples in one epoch.

    Attributes
    ----------
    position : int
        Counts through all epochs.
    epoch : int
        From 0.
    first : int
        Number of its first sample in the data set.
    size : int
        Number of its samples.
    """

    position: int
    epoch: int
    first: int
    size: int


@dataclass(frozen=True)
class ShardPlan:
    """A data set, cut into shards.

    Attributes
    ----------
    shard_size : int
        Samples of a shard; the last shard of an epoch may have fewer.
    shuffle : bool
        Whether shards, and the samples in each, have a random order.
    lease_seconds : float
        A worker that reports nothing for so long loses its shards.

    Raises
    ------
    InvalidInput
        If a number is out of its range.
    """

    n_samples: int
    shard_size: int
    n_epochs: int = 1
    seed: int = 0
    shuffle: bool = True
    lease_seconds: float = 60.0

    def __post_init__(self) -> None:
        ranges = {
            "n_samples": (1, MAX_SAMPLES),
            "shard_size": (1, MAX_SHARD),
            "n_epochs": (1, MAX_EPOCHS),
            "seed": (0, MAX_SEED),
        }
        for name, (least, most) in ranges.items():
            if not least <= getattr(self, name) <= most:
                raise InvalidInput(f"{name} is {getattr(self, name):,}, not {least:,} to {most:,}")
        if not 0 < self.lease_seconds <= MAX_LEASE_SECONDS:
            raise InvalidInput(f"lease_seconds is {self.lease_seconds}, not above 0 and up to a day")
        if self.n_shards > MAX_SHARDS:
            raise InvalidInput(
                f"an epoch would have {self.n_shards:,} shards, at most {MAX_SHARDS:,} are possible",
                hint=f"use shards of {-(-self.n_samples // MAX_SHARDS):,} samples or more",
            )

    @property
    def n_shards(self) -> int:
        """Shards of one epoch."""
        return -(-self.n_samples // self.shard_size)

    @property
    def n_positions(self) -> int:
        """Shards of all epochs."""
        return self.n_shards * self.n_epochs

    def shard(self, position: int) -> Shard:
        """The shard at a position.

        Raises
        ------
        InvalidInput
            If there is no such position.
        """
        if not 0 <= position < self.n_positions:
            raise InvalidInput(f"there is no shard {position:,}: the plan has {self.n_positions:,}")
        epoch, number = divmod(position, self.n_shards)
        if self.shuffle:
            number = _scattered(self.seed, epoch, self.n_shards, number)
        first = number * self.shard_size
        return Shard(position, epoch, first, min(self.shard_size, self.n_samples - first))

    def n_handed_out(self, epoch: int, n_shards: int) -> int:
        """Samples in the first shards of an epoch."""
        if n_shards == self.n_shards:
            return self.n_samples
        has_short = self._place_of_short(epoch) < n_shards
        return n_shards * self.shard_size - (self._n_missing if has_short else 0)

    def size(self, position: int) -> int:
        """Samples of the shard at a position, which has to exist."""
        epoch, place = divmod(position, self.n_shards)
        is_short = bool(self._n_missing) and place == self._place_of_short(epoch)
        return self.shard_size - (self._n_missing if is_short else 0)

    @property
    def _n_missing(self) -> int:
        """Samples that the last shard of the data set has less than the others."""
        return self.n_shards * self.shard_size - self.n_samples

    def _place_of_short(self, epoch: int) -> int:
        """Place of the last shard of the data set in the order of an epoch."""
        last = self.n_shards - 1
        return _place(self.seed, epoch, self.n_shards, last) if self.shuffle else last

    def samples(self, shard: Shard, start: int = 0, stop: int | None = None) -> IntArray:
        """Sample numbers of a shard in the order in which they are trained.

        Parameters
        ----------
        start, stop : int
            Part of the shard, the whole one if not given.

        Returns
        -------
        ndarray of shape (stop - start,), int
        """
        if not self.shuffle:
            return shard.first + np.arange(start, shard.size if stop is None else stop)
        order = _order(self.seed, 2 * shard.position + 1, shard.size)
        numbers: IntArray = shard.first + order[start:stop]
        return numbers


@lru_cache(maxsize=4)
def _order(seed: int, stream: int, length: int) -> IntArray:
    """A permutation; read-only, because it is cached."""
    raw = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(length)
    order: IntArray = np.argsort(raw, kind="stable")
    order.flags.writeable = False
    return order


def _scattered(seed: int, epoch: int, n_shards: int, place: int) -> int:
    """Number of the shard at a place in the order of an epoch."""
    rows, columns = _table(n_shards)
    number = place
    while True:
        row, column = divmod(number, columns)
        for turn in range(_ROUNDS):
            if turn % 2:
                column = (column + _noise(seed, epoch, turn, row)) % columns
            else:
                row = (row + _noise(seed, epoch, turn, column)) % rows
        number = row * columns + column
        # The table has a few more places than there are shards: walk on from those.
        if number < n_shards:
            return number


@lru_cache(maxsize=4096)
def _place(seed: int, epoch: int, n_shards: int, number: int) -> int:
    """Place of a shard in the order of an epoch: the inverse of `_scattered`."""
    rows, columns = _table(n_shards)
    place = number
    while True:
        row, column = divmod(place, columns)
        for turn in reversed(range(_ROUNDS)):
            if turn % 2:
                column = (column - _noise(seed, epoch, turn, row)) % columns
            else:
                row = (row - _noise(seed, epoch, turn, column)) % rows
        place = row * columns + column
        if place < n_shards:
            return place


def _table(n_shards: int) -> tuple[int, int]:
    """Rows and columns of a table that is nearly square and holds all shards."""
    rows = isqrt(n_shards - 1) + 1
    return rows, -(-n_shards // rows)


def _noise(seed: int, epoch: int, turn: int, value: int) -> int:
    key = b"".join(each.to_bytes(8, "little") for each in (seed, epoch, turn, value))
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")
