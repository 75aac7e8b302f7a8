"""Our own topology file (YAML or JSON): any level of nodes, GPUs and ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rca.errors import InvalidInput, cut
from rca.window.job import RankNumber
from rca.window.names import Name
from rca.window.topology.hardware import LEVELS, Facts, HardwarePlace, HardwareTopology
from rca.window.topology.hostlist import expanded

HINT = "docs/how-to/topology.md has an example"


def _as_text(value: object) -> object:
    # YAML reads `rail: 0` as a number.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


PartName = Annotated[Name, BeforeValidator(_as_text)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Gpu(_Closed):
    pci_address: PartName | None = None
    pcie_switch: PartName | None = None
    nic: PartName | None = None
    leaf_switch: PartName | None = None
    rail: PartName | None = None


class _Node(_Gpu):
    pci_address: None = None
    gpus: tuple[_Gpu, ...] | dict[RankNumber, _Gpu] = ()


class _Rank(_Gpu):
    rank: RankNumber
    node: Name
    gpu: RankNumber


class _File(_Closed):
    every_node: _Node | None = None
    nodes: dict[Name, _Node] = Field(default_factory=dict)
    ranks: tuple[_Rank, ...] = Field((), fail_fast=True)


_MEMBERS = frozenset(_File.model_fields)


def is_own_file(document: object) -> bool:
    """Whether a document has a member of our topology file."""
    return isinstance(document, dict) and not _MEMBERS.isdisjoint(document)


def read_own_file(document: object, source: str) -> HardwareTopology:
    """All facts of the file. Names of nodes may be hostlist expressions.

    Raises
    ------
    InvalidInput
        If it has other members, or contradicts itself.
    """
    try:
        held = _File.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(each) for each in first["loc"]) or "the file"
        raise InvalidInput(f"{source}: {cut(place)}: {first['msg']}", hint=HINT) from None
    facts = Facts(source)
    if held.every_node is not None:
        _add_node(facts, None, held.every_node)
    for names, node in held.nodes.items():
        for name in expanded(names):
            _add_node(facts, name, node)
    for rank in held.ranks:
        where = HardwarePlace(rank.node, rank.gpu)
        facts.add_rank(rank.rank, where)
        _add(facts, where, rank)
    return facts.topology()


def _add_node(facts: Facts, name: str | None, node: _Node) -> None:
    _add(facts, HardwarePlace(name), node)
    gpus = node.gpus if isinstance(node.gpus, dict) else dict(enumerate(node.gpus))
    for index, gpu in gpus.items():
        _add(facts, HardwarePlace(name, index), gpu)


def _add(facts: Facts, place: HardwarePlace, parts: _Gpu) -> None:
    for level in LEVELS:
        facts.add(place, level, getattr(parts, level))
