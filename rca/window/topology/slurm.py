"""Slurm's ``topology.conf`` and ``topology.yaml``: the leaf switch of each node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from rca.errors import InvalidInput, cut
from rca.window.topology.hardware import Facts, HardwarePlace, HardwareTopology
from rca.window.topology.hostlist import expanded

_LINE = re.compile(r"^\s*(SwitchName|BlockName)\s*=", re.IGNORECASE | re.MULTILINE)
_FIELD = re.compile(r"(\w+)\s*=\s*(\S+)")
_BLOCKS = "describes blocks of nodes, not switches"


def is_topology_conf(text: str) -> bool:
    """Whether a line of the text defines a switch or a block; ``scontrol show topology`` writes the same."""
    return _LINE.search(text) is not None


def read_topology_conf(text: str, source: str) -> HardwareTopology:
    """Leaf switch of each node, from ``topology.conf`` or the output of ``scontrol show topology``.

    A switch with ``Switches=`` is no leaf, even if its nodes are listed as well.

    Raises
    ------
    InvalidInput
        If no switch has nodes, or a node is on two switches.
    """
    facts = Facts(source)
    blocks = found = 0
    for number, line in enumerate(_joined(text), start=1):
        fields = {name.lower(): value for name, value in _FIELD.findall(line.split("#")[0])}
        blocks += "blockname" in fields
        switch = fields.get("switchname")
        if switch is None or "switches" in fields or "nodes" not in fields:
            continue
        try:
            nodes = expanded(fields["nodes"])
        except InvalidInput as error:
            raise error.restated(f"{source}, line {number}: {error.message}") from error
        found += 1
        for node in nodes:
            facts.add(HardwarePlace(node), "leaf_switch", switch)
    if not found:
        raise _no_leaf(source, _BLOCKS if blocks else "defines no switch with nodes")
    return facts.topology()


def is_topology_yaml(document: object) -> TypeGuard[Sequence[Mapping[str, object]]]:
    """Whether a document is a list of Slurm's topologies."""
    return (
        isinstance(document, list)
        and bool(document)
        and all(isinstance(each, dict) and "topology" in each for each in document)
    )


def read_topology_yaml(document: Sequence[Mapping[str, object]], source: str) -> HardwareTopology:
    """Leaf switch of each node, from the default tree of ``topology.yaml``, or its first one.

    Raises
    ------
    InvalidInput
        If it has no tree, no switch of the tree has nodes, or a node is on two switches.
    """
    trees = [each for each in document if isinstance(each.get("tree"), dict)]
    if not trees:
        raise _no_leaf(source, _BLOCKS if any("block" in each for each in document) else "has no tree")
    chosen = next((each for each in trees if each.get("cluster_default") is True), trees[0])
    tree = chosen["tree"]
    switches = tree.get("switches") if isinstance(tree, dict) else None
    facts = Facts(source)
    found = 0
    for each in switches if isinstance(switches, list) else []:
        if not isinstance(each, dict) or not isinstance(each.get("switch"), str):
            raise InvalidInput(
                f"{source}: {cut(str(each))} is no switch", hint="each needs `switch` with its name"
            )
        if each.get("nodes") is None or each.get("children") is not None:
            continue
        found += 1
        for node in expanded(str(each["nodes"])):
            facts.add(HardwarePlace(node), "leaf_switch", each["switch"])
    if not found:
        raise _no_leaf(source, f"has no switch with nodes in the topology {cut(str(chosen['topology']))}")
    return facts.topology()


def _joined(text: str) -> list[str]:
    """Lines, with those that end in a backslash joined with the next one."""
    return text.replace("\\\r\n", "").replace("\\\n", "").splitlines()


def _no_leaf(source: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"{source} {reason}, so it names no leaf switch",
        hint="give a tree topology, or a file as in docs/how-to/topology.md",
    )
