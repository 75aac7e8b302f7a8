"""Pipes between a rank's processes: fixed-size messages, whole or not at all."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field

BATCH_READY = struct.Struct("=idddd")
KERNEL = struct.Struct("=iid")
TOKEN = b"t"


class PeerGone(RuntimeError):
    """The other end of a pipe has ended."""


@dataclass(frozen=True)
class Pipe:
    """One direction."""

    reader: int
    writer: int

    @classmethod
    def open(cls) -> Pipe:
        """Create a pipe that forked processes inherit."""
        return cls(*os.pipe())

    def send(self, message: bytes) -> None:
        os.write(self.writer, message)

    def receive(self, size: int) -> bytes:
        """Wait for one message; messages are smaller than a pipe's atomic size."""
        message = os.read(self.reader, size)
        if len(message) != size:
            raise PeerGone("pipe closed")
        return message


@dataclass(frozen=True)
class Wires:
    """All pipes of one rank; `link` is the node's: whoever holds its token may copy.

    Attributes
    ----------
    kernels, synchronized : Pipe
        Host to device: what to run; device to host: everything before the marker is done.
    slots, batches : Pipe
        Host to loader: a slot is free; loader to host: a batch lies in a slot.
    copies, copied : Pipe
        Host to copy engine and back.
    """

    link: Pipe
    kernels: Pipe = field(default_factory=Pipe.open)
    synchronized: Pipe = field(default_factory=Pipe.open)
    slots: Pipe = field(default_factory=Pipe.open)
    batches: Pipe = field(default_factory=Pipe.open)
    copies: Pipe = field(default_factory=Pipe.open)
    copied: Pipe = field(default_factory=Pipe.open)
