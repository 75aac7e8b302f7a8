"""``python -m rca_api.shell.demo``: start the service, post one window, print the diagnosis, stop.

This checks an installation from end to end, with a real server process and a real socket.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import rca
from rca.client import Client, ServiceError
from rca.errors import RcaError
from rca.runbook import render
from rca.runbook.phrases import clean
from rca.terminal import exit_code, print_error, rendered

DEFAULT_WINDOW = "data/windows/cpu-contention-node"
_READY_SECONDS = 60.0
_STOP_SECONDS = 15.0
#: The demonstration uses its own folder only, not the settings of the user's service.
_EMBEDDED = {"RCA_AUTH": "off", "RCA_DATABASE_URL": "", "RCA_WINDOW_STORE_URL": ""}


@contextmanager
def running_service(
    start_seconds: float = _READY_SECONDS, settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run the service on a free loopback port until the context ends; gives its address.

    Its data folder is temporary; `settings` are further ``RCA_*`` variables. The server inherits a socket
    that is bound here, so no other process can take the port.
    """
    with socket.socket() as listener, TemporaryFile() as log, TemporaryDirectory(prefix="rca-demo-") as data:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = subprocess.Popen(  # noqa: S603  (our own interpreter and module)
            [sys.executable, "-m", "rca_api.shell.demo", "--serve-on", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "RCA_DATA_DIR": data, **_EMBEDDED, **(settings or {})},
        )
        # Only the server holds the socket now: if it dies, connections are refused at once.
        listener.close()
        try:
            _await_ready(url, server, start_seconds)
            yield url
        except ServiceError as error:
            log.seek(0)
            tail = log.read().decode(errors="replace")[-2000:]
            raise ServiceError(f"{error.message}\n{tail}", code=error.code) from error
        finally:
            _stop(server)


def _serve(descriptor: int) -> None:
    """Serve on an inherited socket, in the process that `running_service` starts.

    uvicorn's option ``--fd`` treats every socket as a Unix socket. The event loop then leaves Nagle's
    algorithm on, and every answer waits 40 ms for an acknowledgement.
    """
    import uvicorn

    from rca_api.shell.requests.request_heads import BoundedHeads

    config = uvicorn.Config(
        "rca_api.shell.app:create_app",
        factory=True,
        http=BoundedHeads,
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


def _await_ready(url: str, server: subprocess.Popen[bytes], start_seconds: float) -> None:
    deadline = time.monotonic() + start_seconds
    client = Client(url, timeout_seconds=start_seconds, retries=0)
    while True:
        if server.poll() is not None:
            raise ServiceError(f"the service ended with status {server.returncode}", code="not-ready")
        try:
            client.ready()
        except ServiceError as error:
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"not ready after {start_seconds:g} s: {error.message}", code="not-ready"
                ) from error
            time.sleep(0.1)
        else:
            return


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration.

    Returns
    -------
    int
        0 if a diagnosis was printed, 2 if the window cannot be read, 1 if the service failed.
    """
    parser = argparse.ArgumentParser(prog="python -m rca_api.shell.demo", description=__doc__)
    parser.add_argument(
        "--window", type=Path, default=Path(DEFAULT_WINDOW), help="directory, JSON or Arrow file"
    )
    parser.add_argument("--serve-on", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve_on is not None:
        _serve(given.serve_on)
        return 0
    try:
        window = rca.read_window(given.window)
    except RcaError as error:
        print_error(error)
        return exit_code(error)
    try:
        with running_service() as url:
            diagnosis = Client(url).diagnose(window)
    except RcaError as error:
        sys.stderr.write(f"demo failed ({error.code}): {error}\n")
        return 1
    # The service got the window without what the reader dropped.
    sys.stderr.writelines(f"note: {clean(note)}\n" for note in window.notes)
    path = str(given.window)
    sys.stdout.write(rendered(render(diagnosis, "terminal", path=path)))
    rest = f"rca diagnose {shlex.quote(path)} --verbose"
    sys.stdout.write(f"\nThe rest: {rest} (. .venv/bin/activate puts rca on the path)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
