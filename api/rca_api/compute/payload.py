"""What is handed to a process of the pool about a received body."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rca_api.decoding import decompress


@dataclass(frozen=True)
class Body:
    """Bytes as they were sent: in memory, or in a file."""

    content: bytes
    path: Path | None

    def read(self) -> bytes:
        """Give all of it."""
        return self.content if self.path is None else self.path.read_bytes()


@dataclass(frozen=True)
class Sent:
    """A body and what its headers said of it."""

    body: Body
    content_type: str
    encoding: str
    max_decoded_bytes: int

    def plain(self) -> bytes:
        """Give the body without its content coding, within the limit."""
        return decompress(self.body.read(), self.encoding, self.max_decoded_bytes)
