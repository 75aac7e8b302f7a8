"""A worker of the elastic job of `benchmarks.act`: trains beside its peers, and fails when one is lost.

Its collective is a round through the benchmark's process, which knows who has arrived. So a worker starts
in a moment, and needs no framework.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from rca import collect

LOAD_SECONDS, WORK_SECONDS = 0.004, 0.04


def main(port: int) -> None:
    """Train until the process is ended or a peer is lost."""
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    collect.start()
    with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rw") as lines:
        lines.write(f"{rank} {attempt}\n")
        lines.flush()
        number = int(lines.readline() or -1)
        while True:
            with collect.step(number):
                with collect.phase("data_loading"):
                    time.sleep(LOAD_SECONDS)
                with collect.phase("forward"):
                    time.sleep(WORK_SECONDS / 3)
                with collect.phase("backward"):
                    time.sleep(2 * WORK_SECONDS / 3)
                with collect.phase("communication"):
                    lines.write(f"{number}\n")
                    lines.flush()
                    if not lines.readline():
                        raise ConnectionError("Connection closed by peer")
            number += 1


if __name__ == "__main__":
    main(int(sys.argv[1]))
