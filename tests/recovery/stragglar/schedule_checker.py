"""Strict check of a schedule: each rank's contribution is in every chunk of every rank exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rca.errors import RcaError
from rca.runtime.stragglar.schedule import CollectiveSchedule, Transfer


class InvalidSchedule(RcaError):
    """A schedule breaks a rule of the rounds, or does not end in an all-reduce."""

    code = "invalid-schedule"


def check(schedule: CollectiveSchedule) -> None:
    """Run the schedule on sets of contributions and refuse it at the first broken rule.

    The value of a chunk is tracked as the bit set of the ranks whose contributions it holds. A sum of two
    values that share a rank would count that rank twice, and is refused.

    Raises
    ------
    InvalidSchedule
        If a rank sends or receives twice in a round, or sends what it does not hold. If a contribution is
        counted twice or lost, or a chunk is unfinished at the end.
    """
    held = _before(schedule)
    for number, transfers in enumerate(schedule.rounds):
        _check_round(schedule, transfers, number)
        before, both = [list(chunks) for chunks in held], set(transfers)
        for each in transfers:
            exchange = Transfer(each.destination, each.source, each.chunk) in both
            held[each.destination][each.chunk] = _received(schedule, before, each, number, exchange)
    everyone = (1 << schedule.n_ranks) - 1
    for rank, chunks in enumerate(held):
        for chunk, value in enumerate(chunks):
            if value != everyone:
                raise InvalidSchedule(
                    f"at the end rank {rank} lacks {_names(everyone & ~value)} in chunk {chunk}"
                )


def _received(
    schedule: CollectiveSchedule, held: Sequence[Sequence[int]], each: Transfer, number: int, exchange: bool
) -> int:
    """Contributions in the destination's chunk after a transfer."""
    where = f"round {number}, rank {each.source} to {each.destination}, chunk {each.chunk}"
    value, mine = held[each.source][each.chunk], held[each.destination][each.chunk]
    lost = ((1 << schedule.n_ranks) - 1) & ~value
    if not value:
        raise InvalidSchedule(f"{where}: the source does not hold this chunk")
    if schedule.adds(each) != exchange:
        raise InvalidSchedule(f"{where}: only the owner and the straggler exchange, in one round both ways")
    if exchange and value & mine:
        raise InvalidSchedule(f"{where}: {_names(value & mine)} would be counted twice")
    if not exchange and lost:
        raise InvalidSchedule(f"{where}: the chunk lacks {_names(lost)}")
    return value | mine if exchange else value


def _before(schedule: CollectiveSchedule) -> list[list[int]]:
    """Contributions after the reduce-scatter, as bit sets. Other partial sums are not held any more."""
    held = [[0] * schedule.n_chunks for _ in range(schedule.n_ranks)]
    held[schedule.straggler] = [1 << schedule.straggler] * schedule.n_chunks
    all_others = ((1 << schedule.n_ranks) - 1) & ~(1 << schedule.straggler)
    for chunk in range(schedule.n_chunks):
        held[schedule.owner(chunk)][chunk] = all_others
    return held


def _check_round(schedule: CollectiveSchedule, transfers: Sequence[Transfer], number: int) -> None:
    for each in transfers:
        ranks = {each.source, each.destination}
        if len(ranks) != 2 or min(ranks) < 0 or max(ranks) >= schedule.n_ranks:
            raise InvalidSchedule(
                f"round {number}: no transfer from rank {each.source} to {each.destination}"
            )
        if not 0 <= each.chunk < schedule.n_chunks:
            raise InvalidSchedule(f"round {number}: there is no chunk {each.chunk}")
    for verb, ranks_of in (
        ("sends", [e.source for e in transfers]),
        ("receives", [e.destination for e in transfers]),
    ):
        rank, count = max(Counter(ranks_of).items(), key=lambda item: item[1], default=(0, 0))
        if count > 1:
            raise InvalidSchedule(f"round {number}: rank {rank} {verb} {count} times")


def _names(ranks: int) -> str:
    return "rank " + ", ".join(str(rank) for rank in range(ranks.bit_length()) if ranks >> rank & 1)
