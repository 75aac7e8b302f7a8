"""The file of `--labels`: what a site's labels are called, and where ranks run."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rca.errors import InvalidInput
from rca.sources.prometheus.promql import MATCHER
from rca.window.names import Name
from rca.yaml_documents import read_document

RankNumber = Annotated[int, Field(ge=0, strict=True)]
MetricName = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", max_length=256)]
Matcher = Annotated[str, Field(pattern=f"^{MATCHER}$", max_length=1000)]
LabelName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]

HINT = "docs/how-to/prometheus.md has an example"


class LabelNames(BaseModel):
    """Names of labels, where they are not the usual ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: LabelName | None = None
    node: LabelName | None = None
    gpu: LabelName | None = None
    rank: LabelName | None = None
    pod: LabelName | None = None
    namespace: LabelName | None = None


class StepTimeSeries(BaseModel):
    """The trainer's own metric of step times.

    Attributes
    ----------
    metric : str
        Name of a gauge; of a histogram or a summary without ``_sum`` and ``_count``.
    unit : str or None
        None for that of the name, else seconds.
    match : tuple of str
        Matchers of its series, such as ``phase="total"``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    metric: MetricName
    unit: Literal["s", "ms", "us"] | None = None
    match: tuple[Matcher, ...] = ()


class LabelMap(BaseModel):
    """Label names and places of ranks that are given, not found.

    Attributes
    ----------
    nodes : tuple of str
        Nodes in the order of their ranks.
    ranks : mapping of str to (sequence of int or mapping of int to int)
        Node -> rank on GPU 0, 1, ..., or GPU index -> rank.
    steps : StepTimeSeries, False or None
        The metric of step times; False for none, None to look for one with a usual name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    labels: LabelNames = LabelNames()
    nodes: tuple[Name, ...] = ()
    ranks: dict[Name, tuple[RankNumber, ...] | dict[RankNumber, RankNumber]] = Field(default_factory=dict)
    steps: StepTimeSeries | Literal[False] | None = None

    @property
    def listed_nodes(self) -> tuple[str, ...]:
        """Nodes that are named, in the order of the file."""
        return tuple(dict.fromkeys((*self.nodes, *self.ranks)))

    def ranks_by_gpu(self) -> dict[str, dict[int, int]]:
        """Node -> GPU index -> rank, of the listed ranks."""
        return {
            node: dict(held) if isinstance(held, dict) else dict(enumerate(held))
            for node, held in self.ranks.items()
        }


def read_label_map(path: str | os.PathLike[str]) -> LabelMap:
    """Read the file of `--labels` (YAML or JSON).

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        If it is no such map, or gives one rank twice.
    """
    held = read_document(path, LabelMap, hint=HINT)
    ranks = [rank for by_gpu in held.ranks_by_gpu().values() for rank in by_gpu.values()]
    if len(set(ranks)) < len(ranks):
        twice = next(rank for rank in ranks if ranks.count(rank) > 1)
        raise InvalidInput(f"{path}: rank {twice} is on two GPUs", hint=HINT)
    if len(set(held.nodes)) < len(held.nodes):
        raise InvalidInput(f"{path}: nodes names a node twice", hint=HINT)
    return held


def label_map_of(given: LabelMap | str | os.PathLike[str] | None) -> LabelMap:
    """The label map that is given, in a file or not at all."""
    if isinstance(given, LabelMap):
        return given
    return LabelMap() if given is None else read_label_map(given)
