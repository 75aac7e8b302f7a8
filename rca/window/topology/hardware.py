"""Hardware topology as facts, each with the file that states it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rca.errors import InvalidInput, cut

Level = Literal["pci_address", "pcie_switch", "nic", "leaf_switch", "rail"]
LEVELS: tuple[Level, ...] = ("pci_address", "pcie_switch", "nic", "leaf_switch", "rail")


class HardwarePlace(NamedTuple):
    """What a fact is about: a GPU of a node, or without `gpu` all its GPUs; without `node` every node."""

    node: str | None = None
    gpu: int | None = None

    def __str__(self) -> str:
        node = "every node" if self.node is None else cut(self.node)
        return node if self.gpu is None else f"GPU {self.gpu} of {node}"


class Fact(NamedTuple):
    """A part's name, and the file or table that states it."""

    name: str
    source: str


@dataclass(frozen=True)
class HardwareTopology:
    """What is known about the hardware of nodes. What no file states is unknown.

    Attributes
    ----------
    facts : mapping of (HardwarePlace, level) to Fact
    ranks : mapping of int to (HardwarePlace, str)
        GPU of each listed rank, and the file that lists it.
    """

    facts: Mapping[tuple[HardwarePlace, Level], Fact] = field(default_factory=dict)
    ranks: Mapping[int, tuple[HardwarePlace, str]] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes with a fact of their own."""
        return tuple(dict.fromkeys(place.node for place, _ in self.facts if place.node is not None))

    def gpus_of(self, node: str | None) -> tuple[int, ...]:
        """GPU indices of a node with a fact, ascending; those of every node if it has none of its own."""
        own = {place.gpu for place, _ in self.facts if place.node == node and place.gpu is not None}
        if not own and node is not None:
            return self.gpus_of(None)
        return tuple(sorted(own))

    def of(self, node: str | None, gpu: int | None, level: Level) -> Fact | None:
        """The most specific fact about a GPU: of the GPU, of its node, of this GPU on every node."""
        places = [HardwarePlace(node, gpu), HardwarePlace(node), HardwarePlace(None, gpu), HardwarePlace()]
        return next((fact for each in places if (fact := self.facts.get((each, level))) is not None), None)


def merged(parts: Iterable[HardwareTopology]) -> HardwareTopology:
    """All facts of several files.

    Raises
    ------
    InvalidInput
        If two files contradict each other; the error names both.
    """
    facts: dict[tuple[HardwarePlace, Level], Fact] = {}
    ranks: dict[int, tuple[HardwarePlace, str]] = {}
    for part in parts:
        for (place, level), fact in part.facts.items():
            known = facts.setdefault((place, level), fact)
            if known.name != fact.name:
                raise contradiction(f"the {level} of {place}", known, fact)
        for rank, (place, source) in part.ranks.items():
            known_place, known_source = ranks.setdefault(rank, (place, source))
            if known_place != place:
                raise contradiction(
                    f"the GPU of rank {rank}", Fact(str(known_place), known_source), Fact(str(place), source)
                )
    return HardwareTopology(facts, ranks)


def contradiction(about: str, one: Fact, other: Fact) -> InvalidInput:
    """The error about two sources that contradict each other."""
    return InvalidInput(
        f"{about} is {cut(one.name)} in {one.source}, and {cut(other.name)} in {other.source}",
        hint="correct one of them, or leave it out",
    )


def canonical_address(text: str) -> str:
    """A PCI address as the kernel writes it: DCGM writes ``00000000:0F:00.0`` for ``0000:0f:00.0``."""
    domain, colon, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}{colon}{rest}" if rest.count(":") == 1 else text.lower()


class Facts:
    """Collects the facts of one file.

    Parameters
    ----------
    source : str
        Name of the file, for errors.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._facts: dict[tuple[HardwarePlace, Level], Fact] = {}
        self._ranks: dict[int, tuple[HardwarePlace, str]] = {}

    def add(self, place: HardwarePlace, level: Level, name: str | None) -> None:
        """State a part's name; None states nothing.

        Raises
        ------
        InvalidInput
            If the file states another name for it.
        """
        if name is None:
            return
        if level == "pci_address":
            name = canonical_address(name)
        known = self._facts.setdefault((place, level), Fact(name, self.source))
        if known.name != name:
            raise InvalidInput(
                f"{self.source}: the {level} of {place} is both {cut(known.name)} and {cut(name)}",
                hint="name it once",
            )

    def add_rank(self, rank: int, place: HardwarePlace) -> None:
        """State the GPU of a rank.

        Raises
        ------
        InvalidInput
            If the file lists the rank twice.
        """
        if rank in self._ranks:
            raise InvalidInput(f"{self.source}: rank {rank} is listed twice", hint="list each rank once")
        self._ranks[rank] = (place, self.source)

    def topology(self) -> HardwareTopology:
        """All that was stated."""
        return HardwareTopology(self._facts, self._ranks)
