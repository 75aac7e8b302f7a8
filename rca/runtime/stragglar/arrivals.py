"""Agreement of a group's ranks on which of them arrives last, through the group's store."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import torch.distributed as dist

from rca.runtime.stragglar.point_to_point import group_of

_DECISION = "last"


class Arrivals:
    """Who arrives last at a point that all ranks pass again and again.

    A counter in the store orders the arrivals. The last but one finds the missing rank and publishes it. So
    the others wait for the last but one only, and the last one does not wait at all.

    Parameters
    ----------
    group
        The default group if None.

    Notes
    -----
    Each agreement of a group has a number in the store. All ranks must create them in the same order.
    """

    _made: ClassVar[Counter[str]] = Counter()

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        group = group_of(group)
        self.n_ranks, self.rank = group.size(), group.rank()
        self._made[group.group_name] += 1
        prefix = f"stragglar/{self._made[group.group_name]}"
        # A connection of its own: waiting for a key must not block other users of the store.
        self.store = dist.PrefixStore(prefix, group.get_group_store().clone())
        self.passed = 0

    def last(self) -> int:
        """Rank within the group that arrives last this time, the same on every rank.

        Returns as soon as all ranks but one have called it.
        """
        self.passed += 1
        if self.n_ranks == 1:
            return 0
        place = int(self.store.add(self._key("count"), 1))
        if place == self.n_ranks:
            return int(self.rank)
        self.store.set(self._key(place), str(self.rank))
        if place < self.n_ranks - 1:
            return int(self.store.get(self._key(_DECISION)))
        arrived = {int(self.store.get(self._key(each))) for each in range(1, self.n_ranks)}
        (missing,) = set(range(self.n_ranks)) - arrived
        self.store.set(self._key(_DECISION), str(missing))
        self._forget_previous()
        return missing

    def _key(self, name: object) -> str:
        return f"{self.passed}/{name}"

    def _forget_previous(self) -> None:
        # All ranks took part in the all-reduce that followed the previous agreement, so they have read it.
        for name in ("count", _DECISION, *range(1, self.n_ranks)):
            self.store.delete_key(f"{self.passed - 1}/{name}")
