"""The job of a window, and where its ranks run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from rca.arrays import IntArray
from rca.robust import group_members
from rca.window.names import Line, Name

FORMAT = 1

MAX_REMARKS = 64

PartLevel = Literal["pcie_switch", "nic", "leaf_switch", "rail"]

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
RankNumber = Annotated[int, Field(ge=0, strict=True)]


class Parallelism(BaseModel):
    """Sizes of the parallel dimensions; 1 where a dimension is not used."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: PositiveInt = 1
    tensor: PositiveInt = 1
    pipeline: PositiveInt = 1
    context: PositiveInt = 1
    expert: PositiveInt = 1
    virtual_pipeline: PositiveInt = 1

    @property
    def world_size(self) -> int:
        """Ranks that these sizes span (experts are inside the data dimension)."""
        return self.data * self.tensor * self.pipeline * self.context


class RankPlace(BaseModel):
    """Where one rank runs, which part of the model it holds, and the hardware that its GPU is behind.

    Names of PCIe switches and network adapters (`nic`) are local to their node. Names of leaf switches and
    rails hold for the whole cluster. `pci_address` is the GPU's own. `pod` and its `namespace` are those of
    the rank's process in Kubernetes.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    rank: RankNumber
    node: Name | None = None
    gpu: RankNumber | None = None
    data_rank: RankNumber | None = None
    tensor_rank: RankNumber | None = None
    pipeline_rank: RankNumber | None = None
    pci_address: Name | None = None
    pcie_switch: Name | None = None
    nic: Name | None = None
    leaf_switch: Name | None = None
    rail: Name | None = None
    pod: Name | None = None
    namespace: Name | None = None


class Job(BaseModel):
    """Metadata of a telemetry window (``window.json``)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    format: Annotated[int, Field(strict=True)] = FORMAT
    window_id: Name | None = None
    job_id: Name
    framework: Line | None = None
    world_size: PositiveInt
    parallelism: Parallelism | None = None
    # The first wrong rank is enough: an error of each takes a kilobyte.
    ranks: tuple[RankPlace, ...] | None = Field(None, fail_fast=True)
    start: float = Field(allow_inf_nan=False, strict=True)
    end: float = Field(allow_inf_nan=False, strict=True)
    hints: dict[str, Any] = Field(default_factory=dict)
    #: What the producer left out or changed; a diagnosis repeats it.
    remarks: tuple[Line, ...] | None = Field(None, max_length=MAX_REMARKS)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with changes; the cached topology is dropped (pydantic would copy it)."""
        fresh = super().model_copy(update=update, deep=deep)
        fresh.__dict__.pop("topology", None)
        return fresh

    @cached_property
    def topology(self) -> Topology:
        """Rank coordinates as arrays, in the format's default order for ranks that are not listed."""
        return Topology.from_job(self)


@dataclass(frozen=True)
class SharedPart:
    """A part of the hardware behind which some of a job's ranks are, and others are not.

    Attributes
    ----------
    level : {"pcie_switch", "nic", "leaf_switch", "rail"}
    within : str or None
        Node of a PCIe switch or a network adapter; leaf switch of a rail, if known.
    ranks : tuple of int
        Ascending.
    """

    level: PartLevel
    name: str
    within: str | None
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """Coordinates of every rank, as arrays indexed by rank.

    Attributes
    ----------
    node : ndarray of shape (n_ranks,), int
        Index into `node_names`; -1 where the node is unknown.
    data_rank, tensor_rank, stage : ndarray of shape (n_ranks,), int
        Position along the data (with context), tensor and pipeline dimension.
    parts : tuple of SharedPart
        PCIe switches, network adapters, leaf switches and rails, as far as they are known.
    """

    node: IntArray
    node_names: tuple[str, ...]
    data_rank: IntArray
    tensor_rank: IntArray
    stage: IntArray
    parts: tuple[SharedPart, ...] = ()

    @property
    def n_ranks(self) -> int:
        return int(self.node.shape[0])

    @property
    def n_stages(self) -> int:
        return int(self.stage.max()) + 1

    @property
    def worker(self) -> IntArray:
        """Tensor group of each rank, shape (n_ranks,), int: its members work on one input in lock-step."""
        if not self.tensor_rank.any():
            return np.arange(self.n_ranks)
        return self.stage * (int(self.data_rank.max()) + 1) + self.data_rank

    @property
    def n_workers(self) -> int:
        """Number of tensor groups; the number of ranks without tensor parallelism."""
        return int(np.unique(self.worker).size)

    @cached_property
    def ranks_of_node(self) -> Mapping[int, IntArray]:
        """Node index -> its ranks, ascending; without ranks of an unknown node."""
        return {int(self.node[ranks[0]]): ranks for ranks in group_members(self.node)}

    def nodes_of(self, ranks: npt.ArrayLike) -> list[str]:
        """Sorted names of the known nodes that host `ranks`."""
        held = np.unique(self.node[np.asarray(ranks, dtype=np.int64)])
        return sorted(self.node_names[index] for index in held if index >= 0)

    @classmethod
    def from_job(cls, job: Job) -> Topology:
        """Rank order: tensor fastest, then data (with context), then pipeline. `job.ranks` overrides it."""
        sizes = job.parallelism or Parallelism(data=job.world_size)
        rank = np.arange(job.world_size)
        width = sizes.data * sizes.context
        tensor_rank = rank % sizes.tensor
        data_rank = rank // sizes.tensor % width
        stage = rank // (sizes.tensor * width)
        names: dict[str, int] = {}
        node = np.full(job.world_size, -1)
        for place in job.ranks or ():
            if place.node is not None:
                node[place.rank] = names.setdefault(place.node, len(names))
            if place.data_rank is not None:
                data_rank[place.rank] = place.data_rank
            if place.tensor_rank is not None:
                tensor_rank[place.rank] = place.tensor_rank
            if place.pipeline_rank is not None:
                stage[place.rank] = place.pipeline_rank
        return cls(node, tuple(names), data_rank, tensor_rank, stage, _parts(job))


def _parts(job: Job) -> tuple[SharedPart, ...]:
    """The parts that the ranks' places name; without those behind which all ranks are."""
    members: dict[tuple[PartLevel, str | None, str], list[int]] = {}
    for place in sorted(job.ranks or (), key=lambda each: each.rank):
        named: tuple[tuple[PartLevel, str | None, str | None], ...] = (
            ("leaf_switch", None, place.leaf_switch),
            ("rail", place.leaf_switch, place.rail),
            ("pcie_switch", place.node, place.pcie_switch),
            ("nic", place.node, place.nic),
        )
        for level, within, name in named:
            if name is not None and (level in ("leaf_switch", "rail") or within is not None):
                members.setdefault((level, within, name), []).append(place.rank)
    return tuple(
        SharedPart(level, name, within, tuple(ranks))
        for (level, within, name), ranks in members.items()
        if len(ranks) < job.world_size
    )
