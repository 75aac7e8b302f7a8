"""A worker of the elastic job of `benchmarks.act`: trains beside its peers, and fails when one is lost.

Its collective is a round through the benchmark's process, which knows who has arrived. So a worker starts
in a moment, and needs no framework.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from rca import collect

LOAD_SECONDS = 0.004
WORK_SECONDS = 0.04
SLOW_FACTOR = 1.8


def main(port: int) -> None:
    """Train until the process is ended or a peer is lost; `SIGUSR1` makes its computation slow for good."""
    rank, attempt, world_size = (
        int(os.environ[name]) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")
    )
    work = WORK_SECONDS

    def slow(*_: object) -> None:
        nonlocal work
        work = SLOW_FACTOR * WORK_SECONDS

    signal.signal(signal.SIGUSR1, slow)
    collect.start()
    with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rw") as lines:
        lines.write(f"{rank} {attempt} {world_size}\n")
        lines.flush()
        number = int(lines.readline() or -1)
        while True:
            with collect.step(number):
                with collect.phase("data_loading"):
                    time.sleep(LOAD_SECONDS)
                with collect.phase("forward"):
                    time.sleep(work / 3)
                with collect.phase("backward"):
                    time.sleep(2 * work / 3)
                with collect.phase("communication"):
                    lines.write(f"{number}\n")
                    lines.flush()
                    if not lines.readline():
                        raise ConnectionError("Connection closed by peer")
            number += 1


if __name__ == "__main__":
    main(int(sys.argv[1]))
