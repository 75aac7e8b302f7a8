"""Where ranks run, as NCCL logs it with ``NCCL_DEBUG=INFO``: host and PCI address of each rank's GPU.

Kernel logs name a GPU by host and address. So an Xid finds its rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rca.sources.logs.failure_tables import LogEvent
from rca.window.node_names import same_nodes

#: A line of a communicator's begin or end.
_COMMUNICATOR = re.compile(
    r"(?<![^\s\]>:])([A-Za-z][\w.-]{0,120}+):\d{1,9}+:\d{1,9}+ \[\d{1,3}+\] NCCL INFO .{0,80}?"
    r"comm 0x[0-9a-f]{1,16}+ rank (\d{1,9}+) n[rR]anks (\d{1,9}+) cudaDev (\d{1,3}+) "
    r"(?:nvmlDev \d{1,3}+ )?+busId ([0-9a-f]{1,15}+)"
)
_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.\d)?$")


class _Place(NamedTuple):
    host: str
    #: Domain, bus and device of the GPU.
    address: tuple[int, int, int]


@dataclass
class NcclPlaces:
    """Places of the ranks of the largest communicators.

    Attributes
    ----------
    size : int
        Ranks of the largest communicator; 0 without one.
    """

    size: int = 0
    _held: dict[int, set[_Place]] = field(default_factory=dict)
    _devices: dict[Path, dict[int, set[int]]] = field(default_factory=dict)

    def add(self, text: str, path: Path) -> None:
        """Take the place from a line of a file, if it has one."""
        found = _COMMUNICATOR.search(text)
        if found is None or int(found[3]) < self.size:
            return
        if int(found[3]) > self.size:
            # The ranks of a smaller communicator are not those of the job.
            self.size, self._held, self._devices = int(found[3]), {}, {}
        bus = int(found[5], 16)
        place = _Place(found[1], (bus >> 20, bus >> 12 & 0xFF, bus >> 4 & 0xFF))
        self._held.setdefault(int(found[2]), set()).add(place)
        self._devices.setdefault(path, {}).setdefault(int(found[4]), set()).add(int(found[2]))

    def rank_in(self, path: Path | None, device: int | None) -> int | None:
        """The only rank of a file that uses a device, or that is in the file; None if it is unknown."""
        devices = {} if path is None else self._devices.get(path, {})
        ranks = set().union(*devices.values())
        found = ranks if len(ranks) == 1 or device is None else devices.get(device, set())
        return next(iter(found)) if len(found) == 1 else None

    def rank_of(self, event: LogEvent) -> int | None:
        """The rank whose GPU an event names by its address; None if it names none, or several could be."""
        address = _address(event.device)
        if address is None:
            return None
        found = {
            rank
            for rank, places in self._held.items()
            if len(places) == 1 and _is_at(next(iter(places)), address, event.node)
        }
        return found.pop() if len(found) == 1 else None

    def nodes(self) -> dict[int, str]:
        """The host of each rank that is known to be on one only."""
        hosts = {rank: {place.host for place in places} for rank, places in self._held.items()}
        return {rank: next(iter(held)) for rank, held in sorted(hosts.items()) if len(held) == 1}


def _is_at(place: _Place, address: tuple[int, int, int], node: str | None) -> bool:
    return place.address == address and (node is None or same_nodes([node], [place.host])[0] == 0)


def _address(text: str | None) -> tuple[int, int, int] | None:
    found = _ADDRESS.match(text or "")
    return None if found is None else (int(found[1] or "0", 16), int(found[2], 16), int(found[3], 16))
