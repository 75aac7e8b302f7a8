"""StragglAR beside a ring: rounds of its schedules, and all-reduces with a really delayed rank.

The ranks are processes on one machine. Each has a network namespace of its own, whose cable is limited with a
token bucket. The straggler sleeps before it joins. Times count from the last arrival to the last end.

Ring time over StragglAR's, measured and (predicted): 4 MiB, 100 Mbit/s, two cores shared with other work. The
90 % intervals are at most 0.03 wide.

=====================  ===========  ===========
delay                  4 ranks      8 ranks
=====================  ===========  ===========
none                   0.73 (0.75)  0.82 (0.82)
break-even             0.97 (1.00)  1.01 (1.01)
2 x break-even         1.09 (1.13)  1.33 (1.32)
3 x break-even         1.11 (1.13)  1.35 (1.36)
=====================  ===========  ===========
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rca.lab.testbed.names import INTERFACE
from rca.lab.testbed.network import TestbedNode, network, run_in_node
from rca.lab.testbed.probe import installed, probe
from rca.lab.testbed.process import ProcessPlacement, ProcessTable
from rca.runtime.stragglar import cost
from rca.runtime.stragglar.checker import check
from rca.runtime.stragglar.cost import Link
from rca.runtime.stragglar.schedule import fewest_rounds, schedule

#: Of version 2 of the paper; 48 has two figures.
PUBLISHED = {
    3: "-", 4: "4", 5: "-", 6: "7", 7: "-", 8: "9", 9: "-", 10: "12", 12: "15", 14: "17", 16: "18", 18: "21",
    20: "24", 22: "26", 24: "27", 26: "31", 28: "33", 30: "38", 32: "35", 33: "-", 40: "47", 48: "55 to 57",
    64: "68", 96: "108", 99: "-", 128: "133", 192: "208", 256: "262",
}  # fmt: skip
ALGORITHMS = ("ring", "torch", "stragglar", "eager")
DELAYS = {"none": 0.0, "break-even": 1.0, "2 x break-even": 2.0, "3 x break-even": 3.0}
TIMEOUT = timedelta(seconds=120)
# Two jumbo frames: a deeper bucket would let each round send its first bytes at full speed.
_BURST = "20kb"
_PORT = 29_611
# A pair of ranks talks once per all-reduce: no slow start each time, and no estimate of the bandwidth. Gloo
# takes a message for sent when the kernel holds it: with deep buffers, messages of several rounds share the
# cable.
TCP = {
    "tcp_slow_start_after_idle": "0",
    "tcp_congestion_control": "reno",
    "tcp_wmem": "4096 65536 131072",
}
_PINGS, _TRANSFERS = 40, 6


@dataclass(frozen=True)
class Plan:
    """One group's experiment: what each rank runs, in order.

    Attributes
    ----------
    n_values
        Number of float32 values to reduce.
    rate
        Megabits per second of each cable, in each direction.
    """

    n_ranks: int
    n_values: int
    rate: float
    repeats: int

    @property
    def size(self) -> int:
        """Bytes to reduce."""
        return 4 * self.n_values

    @property
    def straggler(self) -> int:
        return self.n_ranks - 1

    def runs(self, link: Link) -> Iterator[tuple[str, str, float]]:
        """Algorithm, name of the delay and its seconds, in the same random order on every rank."""
        draw = np.random.default_rng(0)
        break_even = cost.break_even_delay(self.n_ranks, self.size, link)
        cells = [
            (name, delay, factor * break_even) for name in ALGORITHMS for delay, factor in DELAYS.items()
        ]
        for _ in range(self.repeats):
            for position in draw.permutation(len(cells)):
                yield cells[position]


def rounds_table(console: Console, largest: int) -> None:
    table = Table("ranks", "rounds", "published", "lower bound", "build", "check", box=None, pad_edge=False)
    for n, published in PUBLISHED.items():
        if n > largest:
            continue
        began = time.perf_counter()
        rounds = schedule(n, n // 2)
        built = time.perf_counter()
        check(rounds)
        checked = time.perf_counter()
        figures = (n, len(rounds.rounds), published, fewest_rounds(n))
        table.add_row(*map(str, figures), f"{built - began:.3f} s", f"{checked - built:.3f} s")
    console.print(table)


def measure(plan: Plan) -> tuple[Link, list[dict[str, Any]]]:
    """Run the plan on limited cables.

    Returns
    -------
    Link
        Constants of a message, measured before.
    list of dict
        Algorithm, delay, seconds from the last arrival to the last end, and the straggler's real delay.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = ProcessTable(folder / "log")
        stack.callback(processes.end_all)
        for node in stack.enter_context(_limited(plan)):
            serve = partial(_serve, plan, node, folder)
            processes.spawn(
                "rank", serve, ProcessPlacement(namespace=node.namespace, real_time=True), rank=node.index
            )
        while processes.alive:
            if any(ended.code for ended in processes.reap()):
                raise SystemExit(f"a rank failed:\n{(folder / 'log').read_text()}")
            time.sleep(0.2)
        found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(plan.n_ranks)]
    begins, ends = (np.array([each[key] for each in found]) for key in ("begins", "ends"))
    link = Link(*found[0]["link"])
    delays = begins[plan.straggler] - np.delete(begins, plan.straggler, axis=0).max(axis=0)
    taken = ends.max(axis=0) - begins.max(axis=0)
    return link, [
        {"algorithm": name, "delay": delay, "seconds": seconds, "late": late}
        for (name, delay, _), seconds, late in zip(plan.runs(link), taken, delays, strict=True)
    ]


@contextmanager
def _limited(plan: Plan) -> Iterator[list[TestbedNode]]:
    with network(plan.n_ranks, os.cpu_count() or 1, namespaces=True, shaped=True) as nodes:
        rate = f"{plan.rate:g}mbit"
        for node in nodes:
            place = ("class", "change", "dev", INTERFACE, "parent", "1:", "classid", "1:10", "htb")
            run_in_node(node, "tc", *place, "rate", rate, "ceil", rate, "burst", _BURST, "cburst", _BURST)
        yield nodes


def _serve(plan: Plan, node: TestbedNode, folder: Path) -> None:
    """One rank: measure the link, then run the plan and write the times."""
    import torch
    import torch.distributed as dist

    from rca.runtime.stragglar.arrivals import Arrivals
    from rca.runtime.stragglar.execution import all_reduce
    from rca.runtime.stragglar.point_to_point import ring_all_reduce

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    for name, value in TCP.items():
        (Path("/proc/sys/net/ipv4") / name).write_text(value)
    first = node.address.rpartition(".")[0] + ".2"
    dist.init_process_group(
        "gloo", f"tcp://{first}:{_PORT}", TIMEOUT, world_size=plan.n_ranks, rank=node.index
    )
    arrivals = Arrivals()
    tensor = torch.ones(plan.n_values)
    algorithms: dict[str, Callable[[], object]] = {
        "ring": lambda: ring_all_reduce(tensor),
        "torch": lambda: dist.all_reduce(tensor),
        "stragglar": lambda: all_reduce(tensor, plan.straggler),
        "eager": lambda: all_reduce(tensor, arrivals.last()),
    }
    for run in algorithms.values():
        run()
    link = _measured_link(plan, node.index)
    begins, ends = [], []
    for name, _, delay in plan.runs(link):
        tensor.fill_(1.0)
        dist.barrier()
        # The buckets fill up again, and late frames arrive.
        time.sleep(0.02 + delay * (node.index == plan.straggler))
        begins.append(time.monotonic())
        algorithms[name]()
        ends.append(time.monotonic())
        if not bool((tensor == plan.n_ranks).all()):
            raise SystemExit(f"{name}: the sum is wrong")
    figures = {"begins": begins, "ends": ends, "link": [link.alpha, link.beta]}
    (folder / f"{node.index}.json").write_text(json.dumps(figures))
    dist.barrier()


def _measured_link(plan: Plan, rank: int) -> Link:
    """Constants of a message while all ranks send around a ring; the same on all ranks."""
    import torch
    import torch.distributed as dist

    from rca.runtime.stragglar.point_to_point import exchange

    group = dist.group.WORLD
    right, left = (rank + 1) % plan.n_ranks, (rank - 1) % plan.n_ranks

    def seconds(n_values: int, repeats: int) -> float:
        """Median over the repeats of the slowest rank."""
        sent, received = torch.ones(n_values), torch.empty(n_values)
        taken = torch.empty(repeats)
        dist.barrier()
        for number in range(repeats):
            began = time.monotonic()
            exchange(group, (sent, right), (received, left))
            taken[number] = time.monotonic() - began
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        return float(taken.median())

    tiny, n_values = seconds(1, _PINGS), plan.n_values // plan.n_ranks
    return Link(tiny, max(0.0, seconds(n_values, _TRANSFERS) - tiny) / (4 * n_values))


def _median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Median and its 90 % bootstrap interval."""
    draws = np.random.default_rng(0).integers(0, values.size, (2000, values.size))
    low, high = np.quantile(np.median(values[draws], axis=1), [0.05, 0.95])
    return float(np.median(values)), float(low), float(high)


def measured_table(console: Console, plan: Plan) -> list[dict[str, Any]]:
    link, runs = measure(plan)
    n, size = plan.n_ranks, plan.size
    console.print(
        f"{n} ranks, {size / 2**20:g} MiB, {plan.rate:g} Mbit/s per cable, {plan.repeats} repeats. "
        f"Measured link: {link.alpha * 1e3:.2f} ms per message, {8e-6 / link.beta:.0f} Mbit/s. "
        f"Break-even delay {cost.break_even_delay(n, size, link) * 1e3:.0f} ms."
    )
    table = Table(
        "delay", "algorithm", "ms after the last arrival", "ring / this [90 %]", "predicted",
        box=None, pad_edge=False,
    )  # fmt: skip
    rows = []
    for delay in DELAYS:
        ring = _of(runs, "ring", delay)
        for name in ALGORITHMS:
            taken = _of(runs, name, delay)
            ratio, low, high = _median_interval(ring / taken)
            late = np.array(
                [run["late"] for run in runs if (run["algorithm"], run["delay"]) == (name, delay)]
            )
            predicted = None
            if name in ("stragglar", "eager"):
                ours = np.median([cost.stragglar_seconds(n, size, link, each) for each in late])
                predicted = cost.ring_seconds(n, size, link) / float(ours)
            rows.append(
                {"ranks": n, "delay": delay, "late": float(np.median(late)), "algorithm": name,
                 "seconds": float(np.median(taken)), "ratio": ratio, "low": low, "high": high,
                 "predicted": predicted}
            )  # fmt: skip
            table.add_row(
                f"{delay} ({np.median(late) * 1e3:.0f} ms)", name, f"{np.median(taken) * 1e3:.0f}",
                f"{ratio:.2f} [{low:.2f}, {high:.2f}]", "" if predicted is None else f"{predicted:.2f}",
            )  # fmt: skip
    console.print(table)
    return rows


def _of(runs: list[dict[str, Any]], name: str, delay: str) -> np.ndarray:
    return np.array([run["seconds"] for run in runs if (run["algorithm"], run["delay"]) == (name, delay)])


def main() -> None:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks stragglar", description=summary)
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 8], help="sizes of the measured groups")
    parser.add_argument("--mib", type=float, default=4.0, help="size of the tensor")
    parser.add_argument("--mbit", type=float, default=100.0, help="rate of each cable, each direction")
    parser.add_argument("--repeats", type=int, default=6, help="runs of each algorithm and delay")
    parser.add_argument("--largest", type=int, default=256, help="largest size in the table of rounds")
    parser.add_argument("--json", action="store_true", help="print the measured figures as JSON too")
    options = parser.parse_args()
    console = Console(width=120)
    rounds_table(console, options.largest)
    if options.ranks and not installed("torch"):
        console.print("Not measured: PyTorch is not installed.")
        return
    permitted = probe() if options.ranks else None
    if permitted is not None and not (permitted.namespaces and permitted.htb):
        console.print("Not measured: network namespaces with token buckets are not permitted here.")
        return
    rows = []
    for n_ranks in options.ranks:
        n_values = int(options.mib * 2**20 / 4)
        rows += measured_table(console, Plan(n_ranks, n_values, options.mbit, options.repeats))
    if options.json:
        sys.stdout.write(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
