"""Cost of `rca.collect` in a training process: time per step and phase, and memory.

The loop of a training step with six phases and no work runs with and without the collector. The
difference is the collector's time in the training thread. Its own thread is measured over some seconds, by
the processor time of the process while the training thread sleeps.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time

from rich.console import Console
from rich.table import Table

from benchmarks.measure import memory
from rca import collect

PHASES = ("data_loading", "host_to_device", "forward", "backward", "communication", "optimizer")
#: Shares are of a step that takes so long.
STEP_SECONDS = 0.1
ROUNDS = 15
STEPS = 2000


def measure(rest_seconds: float) -> dict[str, float]:
    """All figures, in seconds and bytes."""
    before = memory()
    with tempfile.TemporaryDirectory() as folder:
        off = _per_step()
        collect.start(folder, rank=0, world_size=1)
        on = _per_step()
        grown = memory() - before
        thread = _of_the_thread(rest_seconds)
        collect.stop()
    step = max(0.0, on - off)
    return {
        "step_seconds": step,
        "phase_seconds": step / (1 + len(PHASES)),
        "off_step_seconds": off,
        "thread_share": thread,
        "share_of_step": step / STEP_SECONDS + thread,
        "memory_bytes": grown,
    }


def _per_step() -> float:
    """Seconds of a step with its phases and no work, in the round least disturbed by other processes."""
    taken = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(STEPS):
            with collect.step():
                for name in PHASES:
                    with collect.phase(name):
                        pass
        taken.append((time.perf_counter() - begin) / STEPS)
    return min(taken)


def _of_the_thread(seconds: float) -> float:
    """Processor time per second of the sampling and writing thread."""
    begin, used = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - used) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks collect", description=__doc__.splitlines()[0])
    parser.add_argument("--rest", type=float, default=6.0, metavar="SECONDS", help="watch the thread so long")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found = measure(options.rest)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    table = Table("cost of rca.collect", "measured", "aim", box=None, pad_edge=False)
    microseconds = 1e6
    table.add_row("a step with six phases", f"{found['step_seconds'] * microseconds:.1f} µs", "")
    table.add_row("a phase", f"{found['phase_seconds'] * microseconds:.2f} µs", "")
    table.add_row("such a step, switched off", f"{found['off_step_seconds'] * microseconds:.1f} µs", "")
    table.add_row("sampling and writing thread", f"{found['thread_share']:.2%} of a core", "")
    table.add_row("both, of a 100 ms step", f"{found['share_of_step']:.3%}", "< 0.5 %")
    table.add_row("memory", f"{found['memory_bytes'] / 1e6:.1f} MB", "< 20 MB")
    Console().print(table)


if __name__ == "__main__":
    main()
