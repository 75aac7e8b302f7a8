"""Delay and loss on a node's cable, for kernels without netem: frames pass through a process.

Everything the node sends is redirected into a TAP device; a process holds each frame back or drops it, and
sends the rest past the redirection. TCP above it is the kernel's own.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import time
from collections import deque

import numpy as np

from rca.testbed.names import INTERFACE, relay_interface
from rca.testbed.network import MTU, Node, inside
from rca.testbed.tools import succeeds

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


def permitted(namespace: str, interface: str) -> bool:
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
