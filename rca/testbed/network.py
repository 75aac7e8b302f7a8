"""Running `ip` and `tc`: the only place that starts foreign programs.

Nodes as network namespaces: one bridge, one cable and one token bucket per node.

Delay and loss on a node's cable, for kernels without netem: frames pass through a process.

Everything the node sends is redirected into a TAP device; a process holds each frame back or drops it, and
sends the rest past the redirection. TCP above it is the kernel's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rca.errors import RcaError
from rca.testbed.names import (
    BRIDGE,
    INTERFACE,
    NAMESPACES,
    address,
    namespace_name,
    outer_interface,
    relay_interface,
)

TIMEOUT_SECONDS = 20.0
_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"


class ToolFailed(RcaError):
    """A program the testbed relies on is missing or refused."""

    code = "testbed-tool"


def run_tool(name: str, *arguments: str) -> str:
    """Run a program and return what it printed.

    Raises
    ------
    ToolFailed
        If it is not installed, ended with an error or did not end in time.
    """
    program = shutil.which(name, path=_PLACES)
    if program is None:
        raise ToolFailed(f"{name} is not installed", hint="Debian: the package iproute2")
    try:
        done = subprocess.run(  # noqa: S603 (fixed programs, no shell, arguments are ours)
            [program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"{name} {' '.join(arguments)}: not done in {TIMEOUT_SECONDS:g} s") from error
    if done.returncode:
        raise ToolFailed(f"{name} {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def succeeds(name: str, *arguments: str) -> bool:
    """Whether a program can be run with these arguments."""
    try:
        run_tool(name, *arguments)
    except ToolFailed:
        return False
    return True


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


_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20
_LARGEST_FRAME = 65_536


def redirect(node: Node) -> None:
    """Let the node's outgoing frames take the way through the TAP device, which must exist."""
    tap = relay_interface(node.index)
    inside(node, "ip", "link", "set", tap, "mtu", MTU, "up")
    for command in _redirection(INTERFACE, tap):
        inside(node, "tc", *command)


def restore(node: Node) -> None:
    """Let frames go straight to the cable again."""
    inside(node, "tc", "qdisc", "delete", "dev", INTERFACE, "clsact")


def open_tap(node: Node) -> int:
    """Create the node's TAP device, from inside its namespace; it lives as long as the descriptor."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = relay_interface(node.index).encode()
    fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH22x", name, _IFF_TAP | _IFF_NO_PI))
    return handle


def relay(handle: int, delay_seconds: float, loss_ratio: float, seed: int) -> None:
    """Pass frames on, late or not at all; never returns."""
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    out.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    out.bind((INTERFACE, 0))
    draw = np.random.default_rng(seed)
    held: deque[tuple[float, bytes]] = deque()
    while True:
        pause = None if not held else max(0.0, held[0][0] - time.monotonic())
        readable, _, _ = select.select([handle], [], [], pause)
        if readable:
            frame = os.read(handle, _LARGEST_FRAME)
            if loss_ratio == 0 or draw.random() >= loss_ratio:
                held.append((time.monotonic() + delay_seconds, frame))
        now = time.monotonic()
        while held and held[0][0] <= now:
            _send(out, held.popleft()[1])


def _send(out: socket.socket, frame: bytes) -> None:
    try:
        out.send(frame)
    except OSError:
        # A full queue drops frames, as a switch would; TCP sends them again.
        return


def relay_permitted(namespace: str, interface: str) -> bool:
    """Whether frames can be redirected into a TAP device (tried on a throw-away namespace's interface)."""
    tap = "tap0"
    made = succeeds("ip", "-n", namespace, "tuntap", "add", "dev", tap, "mode", "tap")
    return made and all(succeeds("tc", "-n", namespace, *command) for command in _redirection(interface, tap))


def _redirection(interface: str, tap: str) -> tuple[tuple[str, ...], ...]:
    """What `tc` is told, in order, so that all the interface would send goes into the TAP device."""
    everything = ("protocol", "all", "u32", "match", "u32", "0", "0")
    action = ("action", "mirred", "egress", "redirect", "dev", tap)
    return (
        ("qdisc", "add", "dev", interface, "clsact"),
        ("filter", "add", "dev", interface, "egress", *everything, *action),
    )
