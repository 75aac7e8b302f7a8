"""A real service that is killed and started again often: forked from one process that has done its imports.

A service that starts alone spends most of its start on imports, which no kill can harm.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from callers import answered
from watched import until

LAUNCHER = """
import os, signal, socket, sys
import rca_api.shell.app
from rca_api.shell.demo import _serve

port = int(sys.argv[1])
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in sys.stdin:
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    _serve(listener.detach())
    os._exit(0)
"""


class KilledService:
    """Starts the service at one address, and kills it.

    Attributes
    ----------
    url : str
        The same for every life.
    process : int or None
        Of the present life.
    """

    def __init__(self, launcher: subprocess.Popen[str], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process: int | None = None
        self._launcher = launcher

    def start(self) -> None:
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        self._launcher.stdin.write("start\n")
        self._launcher.stdin.flush()
        self.process = int(self._launcher.stdout.readline())

    def await_ready(self) -> None:
        until(self._is_ready)

    def kill(self) -> None:
        """End the present life by SIGKILL, and wait until the process is gone."""
        if self.process is not None:
            os.kill(self.process, signal.SIGKILL)
            until(self._is_gone)
            self.process = None

    def _is_ready(self) -> bool:
        assert not self._is_gone(), "the service ended by itself"
        try:
            return answered(f"{self.url}/readyz")
        except OSError:
            return False

    def _is_gone(self) -> bool:
        try:
            os.kill(self.process or 0, 0)
        except ProcessLookupError:
            return True
        return False


@contextmanager
def killed_service(settings: Mapping[str, str], log: int) -> Iterator[KilledService]:
    """A service that is not started yet.

    Parameters
    ----------
    settings : mapping
        ``RCA_*`` and other variables of its environment.
    log : int
        File descriptor for what it prints.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={**os.environ, **settings},
        text=True,
    ) as launcher:
        service = KilledService(launcher, port)
        try:
            yield service
        finally:
            service.kill()
            launcher.kill()
