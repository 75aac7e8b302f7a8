"""The rounds of StragglAR after its straggler has arrived.

The all-reduce has two phases. While the straggler is late, the other n - 1 ranks reduce-scatter among
themselves. When it arrives, this schedule runs. Its length is the only price of the method, so it matters.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from rca.errors import InvalidInput
from rca.runtime.stragglar.spreading import STRAGGLER, IndexRound, spread


class Transfer(NamedTuple):
    """One message: `source` sends the chunk that it holds when the round begins to `destination`."""

    source: int
    destination: int
    chunk: int


@dataclass(frozen=True)
class CollectiveSchedule:
    """Rounds of transfers that turn the reduce-scattered chunks into an all-reduce.

    Before the first round the tensor is cut into n - 1 chunks. `owner(i)`, the i-th rank without the
    straggler, holds the sum of chunk i over the n - 1 others. The straggler holds its own contribution to
    every chunk.

    All transfers of a round take place at the same time. A rank sends at most once and receives at most once
    per round, the straggler included. A rank sends what it held when the round began.

    The straggler and the owner of a chunk meet over this chunk once, in both directions of one round. In
    this exchange both **add** what they receive, so both then hold the finished chunk. Every other transfer
    carries a finished chunk and **overwrites** what the destination held of it.

    Attributes
    ----------
    n_ranks
        Ranks of the all-reduce, the straggler included.
    straggler
        Rank that arrives last.
    rounds
        Transfers of each round.

    References
    ----------
    .. [1] Devraj et al., "Efficient AllReduce with Stragglers", arXiv 2505.23523.
    """

    n_ranks: int
    straggler: int
    rounds: list[list[Transfer]]

    @property
    def n_chunks(self) -> int:
        """Number of chunks: one per rank that is not the straggler."""
        return self.n_ranks - 1

    @property
    def others(self) -> list[int]:
        """Ranks without the straggler, ascending. Position i owns chunk i."""
        return [rank for rank in range(self.n_ranks) if rank != self.straggler]

    def owner(self, chunk: int) -> int:
        """Rank that holds the sum of `chunk` over the others before the first round."""
        return chunk if chunk < self.straggler else chunk + 1

    def adds(self, transfer: Transfer) -> bool:
        """Whether the destination adds what it receives. Otherwise it overwrites its chunk."""
        owner = self.owner(transfer.chunk)
        return {transfer.source, transfer.destination} == {owner, self.straggler}

    def of_rank(self, rank: int) -> Iterator[tuple[Transfer | None, Transfer | None]]:
        """What `rank` sends and what it receives, round by round."""
        for transfers in self.rounds:
            sent = next((each for each in transfers if each.source == rank), None)
            received = next((each for each in transfers if each.destination == rank), None)
            yield sent, received


def fewest_rounds(n_ranks: int) -> int:
    """Lower bound on the rounds: n - 2 + ceil(log2 n).

    The straggler sends its contribution to n - 1 chunks, one per round. After the round of the last of them
    two ranks at most hold that chunk finished. The number of its holders at most doubles per round.
    """
    _check_size(n_ranks)
    return n_ranks - 2 + (n_ranks - 1).bit_length()


def schedule(n: int, straggler: int) -> CollectiveSchedule:
    """Build the schedule for `n` ranks of which rank `straggler` arrives last.

    The result depends on nothing but the arguments, so all ranks may build it on their own.

    Parameters
    ----------
    n
        Number of ranks, two or more.
    straggler
        Rank that arrives last, from 0 to n - 1.

    Raises
    ------
    InvalidInput
        If `n` is below two or `straggler` is not a rank.

    Examples
    --------
    >>> from rca.runtime.stragglar.schedule import schedule
    >>> for transfers in schedule(3, straggler=2).rounds:
    ...     print([tuple(each) for each in transfers])
    [(0, 2, 0), (2, 0, 0)]
    [(1, 2, 1), (2, 1, 1)]
    [(2, 0, 1), (0, 1, 0)]
    """
    _check_size(n)
    straggler = _integer(straggler, "the straggler")
    if not 0 <= straggler < n:
        raise InvalidInput(
            f"rank {straggler} is not one of {n} ranks", hint=f"give a straggler from 0 to {n - 1}"
        )
    rank_of = {index: index + (index >= straggler) for index in range(n - 1)} | {STRAGGLER: straggler}
    rounds = [
        [Transfer(rank_of[source], rank_of[destination], chunk) for source, destination, chunk in transfers]
        for transfers in _spread_of(n)
    ]
    return CollectiveSchedule(n, straggler, rounds)


@lru_cache(maxsize=16)
def _spread_of(n_ranks: int) -> tuple[IndexRound, ...]:
    return tuple(spread(n_ranks))


def _check_size(n_ranks: int) -> None:
    if _integer(n_ranks, "the number of ranks") < 2:
        raise InvalidInput(f"an all-reduce needs two ranks or more, not {n_ranks}", hint="give n >= 2")


def _integer(value: int, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise InvalidInput(f"{name} is {value!r}, not an integer", hint="give an int") from error
