"""Nodes as network namespaces: one bridge, and one cable with a token bucket per node.

A relay adds delay and loss on kernels without netem. The node's frames are redirected to a TAP device, and a
process delays or drops each frame and sends the others. TCP above it is the kernel's own.

`ip` and `tc` are the only external programs of the testbed.
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
from rca.lab.testbed.names import (
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
# Far above the job's traffic: a healthy cable must show no queue.
HEALTHY_MBIT = 10_000.0
_MIN_BURST_KB = 64
MTU = "9000"
_PREFIX_LENGTH = 24
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20
_MAX_FRAME = 65_536


class ToolFailed(RcaError):
    """A program that the testbed needs is missing or failed."""

    code = "testbed-tool"


def run_tool(name: str, *arguments: str) -> str:
    """Run a program and return its output.

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


@dataclass(frozen=True)
class TestbedNode:
    """A machine of the job, as its processes see it.

    Attributes
    ----------
    namespace : Path or None
        None where namespaces are not permitted and all nodes share the loopback.
    """

    index: int
    core: int
    namespace: Path | None
    interface: str
    address: str


@contextlib.contextmanager
def network(n_nodes: int, n_cores: int, *, namespaces: bool, shaped: bool) -> Iterator[list[TestbedNode]]:
    """Set up the nodes and take them down again.

    Parameters
    ----------
    namespaces : bool
        Otherwise every node is the machine's own loopback.
    shaped : bool
        Whether each cable gets a generous token bucket, also on healthy nodes: its existence must not reveal
        the affected node.
    """
    if not namespaces:
        yield [TestbedNode(index, index % n_cores, None, "lo", "127.0.0.1") for index in range(n_nodes)]
        return
    nodes = [
        TestbedNode(index, index % n_cores, NAMESPACES / namespace_name(index), INTERFACE, address(index))
        for index in range(n_nodes)
    ]
    try:
        run_tool("ip", "link", "add", BRIDGE, "type", "bridge")
        run_tool("ip", "link", "set", BRIDGE, "up")
        for node in nodes:
            _attach(node)
            if shaped:
                _shape(node)
        yield nodes
    finally:
        for index in range(n_nodes):
            remove_node(index)
        succeeds("ip", "link", "delete", BRIDGE)


def set_rate(node: TestbedNode, mbit: float) -> None:
    """Set the rate of the node's cable in its sending direction."""
    run_in_node(node, "tc", *_bucket("change", mbit))


def run_in_node(node: TestbedNode, tool: str, *arguments: str) -> str:
    """Run `ip` or `tc` in the node's namespace."""
    return run_tool(tool, "-n", namespace_name(node.index), *arguments)


def remove_node(index: int) -> None:
    """Remove a node's namespace and cable if they exist."""
    succeeds("ip", "netns", "delete", namespace_name(index))
    # The namespace removes it, unless a process still holds the namespace open.
    succeeds("ip", "link", "delete", outer_interface(index))


def _attach(node: TestbedNode) -> None:
    name, outer = namespace_name(node.index), outer_interface(node.index)
    run_tool("ip", "netns", "add", name)
    ends = ("link", "add", outer, "mtu", MTU, "type", "veth", "peer", "name", INTERFACE)
    run_tool("ip", *ends, "mtu", MTU, "netns", name)
    run_tool("ip", "link", "set", outer, "master", BRIDGE, "up")
    run_in_node(node, "ip", "address", "add", f"{node.address}/{_PREFIX_LENGTH}", "dev", INTERFACE)
    run_in_node(node, "ip", "link", "set", INTERFACE, "up")
    run_in_node(node, "ip", "link", "set", "lo", "up")


def _shape(node: TestbedNode) -> None:
    run_in_node(node, "tc", "qdisc", "add", "dev", INTERFACE, "root", "handle", "1:", "htb", "default", "10")
    run_in_node(node, "tc", *_bucket("add", HEALTHY_MBIT))


def _bucket(verb: str, mbit: float) -> tuple[str, ...]:
    rate = f"{mbit:g}mbit"
    burst = f"{max(_MIN_BURST_KB, round(mbit / 10))}kb"
    place = ("class", verb, "dev", INTERFACE, "parent", "1:", "classid", "1:10")
    return (*place, "htb", "rate", rate, "ceil", rate, "burst", burst, "cburst", burst)


def redirect(node: TestbedNode) -> None:
    """Redirect the node's outgoing frames to the TAP device, which must exist."""
    tap = relay_interface(node.index)
    run_in_node(node, "ip", "link", "set", tap, "mtu", MTU, "up")
    for command in _redirection(INTERFACE, tap):
        run_in_node(node, "tc", *command)


def restore(node: TestbedNode) -> None:
    """Send frames directly to the cable again."""
    run_in_node(node, "tc", "qdisc", "delete", "dev", INTERFACE, "clsact")


def open_tap(node: TestbedNode) -> int:
    """Create the node's TAP device, from inside its namespace; it lives as long as the descriptor."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = relay_interface(node.index).encode()
    fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH22x", name, _IFF_TAP | _IFF_NO_PI))
    return handle


def relay(handle: int, delay_seconds: float, loss_ratio: float, seed: int) -> None:
    """Delay or drop frames until killed; never returns."""
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    out.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    out.bind((INTERFACE, 0))
    draw = np.random.default_rng(seed)
    held: deque[tuple[float, bytes]] = deque()
    while True:
        pause = None if not held else max(0.0, held[0][0] - time.monotonic())
        readable, _, _ = select.select([handle], [], [], pause)
        if readable:
            frame = os.read(handle, _MAX_FRAME)
            if loss_ratio == 0 or draw.random() >= loss_ratio:
                held.append((time.monotonic() + delay_seconds, frame))
        now = time.monotonic()
        while held and held[0][0] <= now:
            _send(out, held.popleft()[1])


def _send(out: socket.socket, frame: bytes) -> None:
    try:
        out.send(frame)
    except OSError:
        # A full queue drops frames, as a switch does; TCP sends them again.
        return


def relay_permitted(namespace: str, interface: str) -> bool:
    """Whether frames can be redirected to a TAP device, tried in a temporary namespace."""
    tap = "tap0"
    made = succeeds("ip", "-n", namespace, "tuntap", "add", "dev", tap, "mode", "tap")
    return made and all(succeeds("tc", "-n", namespace, *command) for command in _redirection(interface, tap))


def _redirection(interface: str, tap: str) -> tuple[tuple[str, ...], ...]:
    """Commands for `tc`, in order, that redirect all outgoing frames of the interface to the TAP device."""
    everything = ("protocol", "all", "u32", "match", "u32", "0", "0")
    action = ("action", "mirred", "egress", "redirect", "dev", tap)
    return (
        ("qdisc", "add", "dev", interface, "clsact"),
        ("filter", "add", "dev", interface, "egress", *everything, *action),
    )
