"""Nodes as network namespaces: one bridge, one cable and one token bucket per node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rca.testbed.names import (
    BRIDGE,
    INTERFACE,
    NAMESPACES,
    address,
    namespace_name,
    outer_interface,
)
from rca.testbed.tools import run_tool, succeeds

# Far above what the job sends: a healthy cable must show no queue.
HEALTHY_MBIT = 10_000.0
_SMALLEST_BURST_KB = 64
MTU = "9000"
_PREFIX_LENGTH = 24


@dataclass(frozen=True)
class Node:
    """A machine of the job, as its processes see it.

    Attributes
    ----------
    namespace : Path or None
        None where namespaces are not permitted and everybody shares the loopback.
    """

    index: int
    core: int
    namespace: Path | None
    interface: str
    address: str


@contextlib.contextmanager
def network(n_nodes: int, n_cores: int, *, namespaces: bool, shaped: bool) -> Iterator[list[Node]]:
    """Set up the nodes and take them down again.

    Parameters
    ----------
    namespaces : bool
        Otherwise every node is the machine's own loopback.
    shaped : bool
        Whether each cable gets a (generous) token bucket, on healthy nodes too: its mere existence must
        not give a victim away.
    """
    if not namespaces:
        yield [Node(index, index % n_cores, None, "lo", "127.0.0.1") for index in range(n_nodes)]
        return
    nodes = [
        Node(index, index % n_cores, NAMESPACES / namespace_name(index), INTERFACE, address(index))
        for index in range(n_nodes)
    ]
    try:
        run_tool("ip", "link", "add", BRIDGE, "type", "bridge")
        run_tool("ip", "link", "set", BRIDGE, "up")
        for node in nodes:
            _plug_in(node)
            if shaped:
                _shape(node)
        yield nodes
    finally:
        for index in range(n_nodes):
            unplug(index)
        succeeds("ip", "link", "delete", BRIDGE)


def set_rate(node: Node, mbit: float) -> None:
    """Set the pace of the node's cable in its sending direction."""
    inside(node, "tc", *_bucket("change", mbit))


def inside(node: Node, tool: str, *arguments: str) -> str:
    """Run `ip` or `tc` in the node's namespace."""
    return run_tool(tool, "-n", namespace_name(node.index), *arguments)


def unplug(index: int) -> None:
    """Remove a node's namespace and cable, whatever of them exists."""
    succeeds("ip", "netns", "delete", namespace_name(index))
    # Usually gone with the namespace, unless a process still holds that open.
    succeeds("ip", "link", "delete", outer_interface(index))


def _plug_in(node: Node) -> None:
    name, outer = namespace_name(node.index), outer_interface(node.index)
    run_tool("ip", "netns", "add", name)
    ends = ("link", "add", outer, "mtu", MTU, "type", "veth", "peer", "name", INTERFACE)
    run_tool("ip", *ends, "mtu", MTU, "netns", name)
    run_tool("ip", "link", "set", outer, "master", BRIDGE, "up")
    inside(node, "ip", "address", "add", f"{node.address}/{_PREFIX_LENGTH}", "dev", INTERFACE)
    inside(node, "ip", "link", "set", INTERFACE, "up")
    inside(node, "ip", "link", "set", "lo", "up")


def _shape(node: Node) -> None:
    inside(node, "tc", "qdisc", "add", "dev", INTERFACE, "root", "handle", "1:", "htb", "default", "10")
    inside(node, "tc", *_bucket("add", HEALTHY_MBIT))


def _bucket(verb: str, mbit: float) -> tuple[str, ...]:
    rate = f"{mbit:g}mbit"
    burst = f"{max(_SMALLEST_BURST_KB, round(mbit / 10))}kb"
    place = ("class", verb, "dev", INTERFACE, "parent", "1:", "classid", "1:10")
    return (*place, "htb", "rate", rate, "ceil", rate, "burst", burst, "cburst", burst)
