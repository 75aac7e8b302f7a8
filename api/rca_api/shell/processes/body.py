"""Spool: a received body for a process, in memory while it is small, else in a file.

The pipe of a process copies its content four times. For a hundred megabytes that takes longer than the
diagnosis.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

from fastapi import Request

from rca.errors import SourceError
from rca_api.shell.requests.admission import Ticket, chunks_of
from rca_api.shell.requests.decoding import Body
from rca_api.shell.store.private import private_folder

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
    """A folder of bodies that are being processed; each process has its own in it.

    A lock on its folder tells that the process lives. The system releases it however the process ends. So
    what a killed one left is deleted at the next start of any, while those that live keep their bodies.

    Parameters
    ----------
    folder : Path
        On this machine; several processes may share it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: The folder of this process, and the descriptor that holds its lock.
        self._own: tuple[Path, int] | None = None
        self._making = threading.Lock()
        #: Files of requests in progress.
        self._held: set[Path] = set()

    def clean(self) -> int:
        """Create a folder for this process, and delete what no request in progress and no process owns.

        Returns
        -------
        int
            Number of deleted files and folders.
        """
        # Creates the data folder as well if the database is elsewhere.
        private_folder(self._folder.parent)
        own = self._own_folder()
        # A request that is cancelled while its file is opened leaves the file.
        left = [path for path in own.iterdir() if path not in self._held and _is_older(path, 60)]
        for path in left:
            path.unlink(missing_ok=True)
        others = [path for path in self._folder.iterdir() if path != own]
        return len(left) + sum(map(_deleted, others))

    def close(self) -> None:
        """Delete the folder of this process."""
        if self._own is not None:
            shutil.rmtree(self._own[0], ignore_errors=True)
            os.close(self._own[1])
            self._own = None

    def _own_folder(self) -> Path:
        """The folder of this process, made anew if it was deleted."""
        with self._making:
            if self._own is None or not self._own[0].exists():
                self.close()
                private_folder(self._folder)
                self._own = _claimed(self._folder)
            return self._own[0]

    def _opened(self) -> tuple[Path, IO[bytes]]:
        try:
            path = self._own_folder() / f"body-{uuid4().hex}"
            return path, path.open("wb")
        except OSError as error:
            raise SpoolError(f"a large body cannot be kept: {error.strerror}") from error

    @asynccontextmanager
    async def receive(
        self, request: Request, ticket: Ticket, limit: int, timeout_seconds: float
    ) -> AsyncIterator[Received]:
        """Receive the body of a request; it exists as long as the context.

        Raises
        ------
        TooLarge, ProblemError
            As `rca_api.shell.requests.admission.chunks_of`.
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
                    if file is None:
                        opened = await asyncio.to_thread(self._opened)
                        path, file = opened[0], opened[1]
                        self._held.add(path)
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
                self._held.discard(path)


def _claimed(folder: Path) -> tuple[Path, int]:
    """Make a folder in `folder` and lock it; gives the descriptor that holds the lock."""
    while True:
        own = folder / f"process-{uuid4().hex}"
        private_folder(own)
        # Before it is locked, another process may take it for that of a dead one.
        with suppress(FileNotFoundError):
            descriptor = os.open(own, os.O_RDONLY)
            if _locks(descriptor) is not False and own.exists():
                return own, descriptor
            os.close(descriptor)


def _locks(descriptor: int) -> bool | None:
    """Lock what is open; False if another process has the lock, None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _deleted(path: Path) -> bool:
    """Delete what a process left that has ended; whether something was deleted.

    Where a lock tells nothing, the age does: no request takes so long.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        locked = _locks(descriptor) if path.is_dir() else None
        if not (_is_older(path, _ABANDONED_SECONDS) if locked is None else locked):
            return False
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime > seconds
    except FileNotFoundError:
        return False


def _write(file: IO[bytes], chunks: list[bytes]) -> None:
    try:
        file.write(b"".join(chunks))
        # So that a full disk is reported here, not when the file is closed.
        file.flush()
    except OSError as error:
        raise SpoolError(f"a large body cannot be kept: {error.strerror}") from error
