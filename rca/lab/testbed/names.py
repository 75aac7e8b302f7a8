"""Names of everything that the testbed sets up; one prefix marks leftovers for removal."""

from __future__ import annotations

from pathlib import Path

PREFIX = "rcatb"
BRIDGE = f"{PREFIX}br"
#: Network interface inside a node.
INTERFACE = "eth0"
NAMESPACES = Path("/run/netns")


def node_name(node: int) -> str:
    """The node's name in windows and labels."""
    return f"node-{node}"


def namespace_name(node: int) -> str:
    return f"{PREFIX}-{node}"


def outer_interface(node: int) -> str:
    """The end of the node's cable that is plugged into the bridge."""
    return f"{PREFIX}v{node}"


def relay_interface(node: int) -> str:
    return f"{PREFIX}t{node}"


def address(node: int) -> str:
    """IPv4 address of the node, in a range inside the namespaces only."""
    return f"10.213.0.{node + 2}"
