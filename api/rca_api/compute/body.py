"""Spool: a received body for a process, in memory while it is small, else in a file.

The pipe of a process copies its content four times. For a hundred megabytes that takes longer than the
diagnosis.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

from fastapi import Request

from rca.errors import SourceError
from rca_api.admission import Ticket, chunks_of
from rca_api.decoding import Body
from rca_api.store.private import private_folder

#: Larger bodies travel in a file.
IN_MEMORY_BYTES = 1 << 20
_ABANDONED_SECONDS = 3600.0


@dataclass(frozen=True)
class Received:
    """A complete body, and the SHA-256 of its bytes as sent."""

    body: Body
    sha256: str


class SpoolError(SourceError):
    """The spool folder cannot be written."""

    code = "store-unavailable"


class Spool:
    """A folder of bodies that are being processed.

    Parameters
    ----------
    folder : Path
        On this machine. Files that a killed process left there are deleted at start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def clean(self) -> None:
        """Create the folder, and delete abandoned files in it."""
        # Creates the data folder as well if the database is elsewhere.
        private_folder(self._folder.parent)
        private_folder(self._folder)
        for path in self._folder.iterdir():
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)

    @asynccontextmanager
    async def receive(
        self, request: Request, ticket: Ticket, limit: int, timeout_seconds: float
    ) -> AsyncIterator[Received]:
        """Receive the body of a request; it exists as long as the context.

        Raises
        ------
        TooLarge, ProblemError
            As `rca_api.admission.chunks_of`.
        SpoolError
            If a large body cannot be written.
        """
        digest = hashlib.sha256()
        held: list[bytes] = []
        size = 0
        path: Path | None = None
        file: IO[bytes] | None = None
        try:
            async for chunk in chunks_of(request, ticket, limit, timeout_seconds):
                digest.update(chunk)
                held.append(chunk)
                size += len(chunk)
                if size > IN_MEMORY_BYTES:
                    if file is None or path is None:
                        path = self._folder / f"body-{uuid4().hex}"
                        file = await asyncio.to_thread(_opened, path)
                    await asyncio.to_thread(_write, file, held)
                    held, size = [], 0
            if file is None or path is None:
                yield Received(Body(b"".join(held), None), digest.hexdigest())
            else:
                await asyncio.to_thread(_write, file, held)
                yield Received(Body(b"", path), digest.hexdigest())
        finally:
            if file is not None:
                # A full disk has been reported already; closing tries to write once more.
                with suppress(OSError):
                    file.close()
            if path is not None:
                path.unlink(missing_ok=True)


def _opened(path: Path) -> IO[bytes]:
    try:
        private_folder(path.parent)
        return path.open("wb")
    except OSError as error:
        raise SpoolError(f"a large body cannot be kept: {error.strerror}") from error


def _write(file: IO[bytes], chunks: list[bytes]) -> None:
    try:
        file.write(b"".join(chunks))
        # So that a full disk is reported here, not when the file is closed.
        file.flush()
    except OSError as error:
        raise SpoolError(f"a large body cannot be kept: {error.strerror}") from error
