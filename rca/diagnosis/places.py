"""Places in an answer: of single ranks, of a shared part of the hardware, and the span of the window."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from rca.window.job import PartLevel

#: What the parts of a topology are called, and what comes between a part and the place that it is in.
PART_WORDS: Mapping[PartLevel, tuple[str, str]] = {
    "leaf_switch": ("leaf switch ", ""),
    "rail": ("rail ", " of leaf switch "),
    "pcie_switch": ("PCIe switch ", " of "),
    "nic": ("NIC ", " of "),
}


class Shared(BaseModel):
    """The part of the hardware that slow ranks share, and that their cause is a fault of.

    `within` is the node of a PCIe switch or NIC, and the leaf switch of a rail. `ranks` and `nodes` are all
    those behind the part.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: PartLevel
    name: str
    within: str | None
    ranks: list[int]
    nodes: list[str]

    @property
    def title(self) -> str:
        """The part in words: ``PCIe switch plx-0 of node-2``."""
        words, between = PART_WORDS[self.level]
        return f"{words}{self.name}" + ("" if self.within is None else f"{between}{self.within}")


class Place(BaseModel):
    """Where one rank runs, as far as the window has it.

    `gpu` is the index on its node, `pci_address` that GPU's address. `nic` is the network adapter that serves
    it. `stage` is the pipeline stage; None in jobs without pipeline parallelism. `pod` and
    `namespace` are those of its process in Kubernetes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int
    node: str | None = None
    gpu: int | None = None
    pci_address: str | None = None
    nic: str | None = None
    stage: int | None = None
    pod: str | None = None
    namespace: str | None = None


class WindowSpan(BaseModel):
    """The span of a job that its window shows: times (UTC), steps, ranks and nodes.

    Times are None where the window's clock is no calendar time. Steps are None without step rows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: datetime | None
    end: datetime | None
    first_step: int | None
    last_step: int | None
    world_size: int
    nodes: int
