"""Progress of every rank in the collectives: who waits, and who did not join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray, IntArray
from rca.window.grouping import codes_of
from rca.window.window import Window


class Wait(NamedTuple):
    """The earliest wait for one rank.

    Attributes
    ----------
    group, operation : str
        Group and collective in which the others wait.
    since : float, Unix seconds
        NaN if the record has no time.
    waiting : int
        Members of the group that wait.
    behind : int or None, collectives
        How far the rank is behind the group; None without a record of the group.
    """

    group: str
    operation: str
    since: float
    waiting: int
    behind: int | None


@dataclass(frozen=True)
class CollectiveProgress:
    """What the ranks' records of collectives show.

    A rank is missing if members of one of its groups wait at the group's last collective and it has not
    enqueued that. A missing rank that itself waits for another missing rank is only held up.

    Attributes
    ----------
    waiting : ndarray of shape (n_ranks,), bool
        The rank waits in a collective, with all other members or without some.
    missing : ndarray of shape (n_ranks,), bool
        Ranks with which the waiting began.
    recorded : ndarray of shape (n_ranks,), bool
        The rank left a record.
    waits : mapping of int to Wait
        For every missing rank.
    """

    waiting: BoolArray
    missing: BoolArray
    recorded: BoolArray
    waits: Mapping[int, Wait]

    @classmethod
    def from_window(cls, window: Window) -> CollectiveProgress:
        """Compare the members of every group."""
        table, n_ranks = window.collectives, window.job.world_size
        rank = table.column("rank").to_numpy()
        group, groups = codes_of(table.column("group"))
        codes, states = codes_of(table.column("state"))
        state = np.array(states)[codes]
        # Members without a number come before any number.
        sequence = table.column("sequence").fill_null(-1).to_numpy()
        last = np.full(len(groups), -1, dtype=np.int64)
        np.maximum.at(last, group, sequence)
        late = sequence < last[group]
        # At the group's last collective a rank has done its part, and waits for the others.
        arrived = (state == "waiting") & ~late
        contested = _marked(group, arrived, len(groups)) & _marked(group, late, len(groups))
        absent, held_up = contested[group] & late, contested[group] & arrived
        missing = _marked(rank, absent, n_ranks)
        first = missing & ~_marked(rank, held_up, n_ranks)
        missing = first if first.any() else missing
        waits = _waits(window, absent & missing[rank], held_up, last, sequence)
        return cls(
            waiting=_marked(rank, state == "waiting", n_ranks),
            missing=missing,
            recorded=_marked(rank, state != "unrecorded", n_ranks),
            waits=waits,
        )


def _waits(
    window: Window, absent: BoolArray, held_up: BoolArray, last: IntArray, sequence: IntArray
) -> dict[int, Wait]:
    """The earliest wait for each rank of the rows `absent`."""
    table = window.collectives
    rank, since = table.column("rank").to_numpy(), table.column("waiting_since").to_numpy()
    group, groups = codes_of(table.column("group"))
    operation, operations = codes_of(table.column("operation"))
    waiting = np.bincount(group[held_up], minlength=len(groups))
    # Of each group the row with the earliest wait: later ones are overwritten. NaN is sorted last.
    order = np.flatnonzero(held_up)
    order = order[np.argsort(since[order], kind="stable")][::-1]
    earliest = np.full(len(groups), -1, dtype=np.int64)
    earliest[group[order]] = order
    found: dict[int, Wait] = {}
    for row in np.flatnonzero(absent):
        code = int(group[row])
        first = int(earliest[code])
        wait = Wait(
            group=groups[code],
            operation=operations[operation[first]] if operation[first] >= 0 else "a collective",
            since=float(since[first]),
            waiting=int(waiting[code]),
            behind=int(last[code] - sequence[row]) if sequence[row] >= 0 else None,
        )
        known = found.get(int(rank[row]))
        if known is None or wait.since < known.since:
            found[int(rank[row])] = wait
    return found


def _marked(index: npt.NDArray[np.integer], marked: BoolArray, size: int) -> BoolArray:
    """Which of `size` numbers occur in a marked row, bool of shape (size,)."""
    found = np.zeros(size, dtype=bool)
    found[index[marked]] = True
    return found
