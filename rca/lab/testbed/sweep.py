"""The lock that permits one capture at a time, and the removal of leftovers by name prefix."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rca.errors import RcaError
from rca.lab.testbed.cgroups import find_hierarchies, members, remove_tree
from rca.lab.testbed.names import BRIDGE, NAMESPACES, PREFIX
from rca.lab.testbed.network import succeeds

_INTERFACES = Path("/sys/class/net")


class Busy(RcaError):
    """Another capture is running on this machine."""

    code = "testbed-busy"


def lock_file() -> Path:
    return Path(tempfile.gettempdir()) / f"{PREFIX}.lock"


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Hold the machine's lock: two captures at once would disturb each other.

    Raises
    ------
    Busy
        If another process holds the lock.
    """
    handle = os.open(lock_file(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                "another capture is running on this machine", hint="captures run one at a time"
            ) from None
        yield
    finally:
        os.close(handle)


def sweep() -> list[str]:
    """Remove the leftovers of a crashed capture; hold the lock while calling it.

    Returns
    -------
    list of str
        Removed leftovers.
    """
    return [*_processes(), *_groups(), *_namespaces(), *_interfaces(), *_folders()]


def _roots() -> list[Path]:
    return [root / PREFIX for root in find_hierarchies().roots()]


def _processes() -> Iterator[str]:
    for pid in sorted({pid for root in _roots() for pid in members(root)}):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            yield f"process {pid}"


def _groups() -> Iterator[str]:
    for root in _roots():
        if root.is_dir() and remove_tree(root):
            yield f"control group {root}"


def _namespaces() -> Iterator[str]:
    for file in sorted(NAMESPACES.glob(f"{PREFIX}-*")) if NAMESPACES.is_dir() else []:
        if succeeds("ip", "netns", "delete", file.name):
            yield f"namespace {file.name}"


def _interfaces() -> Iterator[str]:
    names = [path.name for path in _INTERFACES.glob(f"{PREFIX}*")] if _INTERFACES.is_dir() else []
    # The bridge comes last, after its ports.
    for name in sorted(names, key=lambda name: name == BRIDGE):
        if succeeds("ip", "link", "delete", name):
            yield f"interface {name}"


def _folders() -> Iterator[str]:
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}-*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
            yield f"folder {path}"
