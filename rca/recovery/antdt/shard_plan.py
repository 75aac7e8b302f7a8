"""How a data set is cut into shards, and their order in each epoch.

A shard is a range of sample numbers. Positions count the shards through all epochs in the order in which
they are handed out. The order depends on the seed and the epoch only, on any machine and version of numpy. It
comes from the raw stream of a bit generator, which numpy keeps. The distributions of numpy may change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rca.arrays import IntArray
from rca.errors import InvalidInput

MOST_SAMPLES = 1 << 50
#: Most shards of an epoch, and most samples of a shard: a permutation of them is held in memory.
MOST_SHARDS, LARGEST_SHARD = 1 << 20, 1 << 24
MOST_EPOCHS = 1 << 20
LONGEST_LEASE_SECONDS = 86_400.0
LARGEST_SEED = (1 << 63) - 1


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
    n_samples : int
    shard_size : int
        Samples of a shard; the last shard of an epoch may have fewer.
    n_epochs : int
    seed : int
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
            "n_samples": (1, MOST_SAMPLES),
            "shard_size": (1, LARGEST_SHARD),
            "n_epochs": (1, MOST_EPOCHS),
            "seed": (0, LARGEST_SEED),
        }
        for name, (least, most) in ranges.items():
            if not least <= getattr(self, name) <= most:
                raise InvalidInput(f"{name} is {getattr(self, name):,}, not {least:,} to {most:,}")
        if not 0 < self.lease_seconds <= LONGEST_LEASE_SECONDS:
            raise InvalidInput(f"lease_seconds is {self.lease_seconds}, not above 0 and up to a day")
        if self.n_shards > MOST_SHARDS:
            raise InvalidInput(
                f"an epoch would have {self.n_shards:,} shards, at most {MOST_SHARDS:,} are possible",
                hint=f"use shards of {-(-self.n_samples // MOST_SHARDS):,} samples or more",
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
            number = int(_order(self.seed, 2 * epoch, self.n_shards)[number])
        first = number * self.shard_size
        return Shard(position, epoch, first, min(self.shard_size, self.n_samples - first))

    def n_handed_out(self, epoch: int, n_shards: int) -> int:
        """Samples in the first shards of an epoch."""
        if n_shards == self.n_shards:
            return self.n_samples
        last = self.n_shards - 1
        has_last = self.shuffle and bool(
            (_order(self.seed, 2 * epoch, self.n_shards)[:n_shards] == last).any()
        )
        missing = self.n_shards * self.shard_size - self.n_samples
        return n_shards * self.shard_size - (missing if has_last else 0)

    def samples(self, shard: Shard, start: int = 0, stop: int | None = None) -> IntArray:
        """Sample numbers of a shard in the order in which they are trained.

        Parameters
        ----------
        shard : Shard
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
