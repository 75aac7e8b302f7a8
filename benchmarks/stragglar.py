"""StragglAR beside torch's ring: all-reduces with a really delayed rank.

The ranks are processes on one machine. Each has a network namespace of its own, whose cable is limited with a
token bucket (``--mbit 0``: not limited). The straggler sleeps before it joins. Times count from the last
arrival to the last end.
"""

from __future__ import annotations

import argparse
import json
import os
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

from benchmarks.measure import print_table
from rca.lab.evaluation.intervals import bootstrap
from rca.lab.evaluation.tables import cell
from rca.lab.testbed.names import INTERFACE
from rca.lab.testbed.network import TestbedNode, network, run_in_node
from rca.lab.testbed.probe import installed, probe
from rca.lab.testbed.process import ProcessPlacement, ProcessTable
from rca.runtime.stragglar import cost
from rca.runtime.stragglar.cost import Link

ALGORITHMS = ("ring", "stragglar")
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
class AllReducePlan:
    """One group's experiment: what each rank runs, in order.

    Attributes
    ----------
    n_values
        Number of float32 values to reduce.
    rate
        Megabits per second of each cable, in each direction; 0 for no limit.
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
        # By this link's costs a small tensor may have none.
        break_even = min(
            cost.break_even_delay(self.n_ranks, self.size, link),
            cost.reduce_scatter_seconds(self.n_ranks, self.size, link),
        )
        cells = [
            (name, delay, factor * break_even) for name in ALGORITHMS for delay, factor in DELAYS.items()
        ]
        for _ in range(self.repeats):
            for position in draw.permutation(len(cells)):
                yield cells[position]


def measure(plan: AllReducePlan) -> tuple[Link, bool, list[dict[str, Any]]]:
    """Run the plan on limited cables.

    Returns
    -------
    Link
        Constants of a message, measured before.
    bool
        Whether the communication hook would take StragglAR for this size.
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
    return (
        link,
        found[0]["is_chosen"],
        [
            {"algorithm": name, "delay": delay, "seconds": seconds, "late": late}
            for (name, delay, _), seconds, late in zip(plan.runs(link), taken, delays, strict=True)
        ],
    )


@contextmanager
def _limited(plan: AllReducePlan) -> Iterator[list[TestbedNode]]:
    with network(plan.n_ranks, os.cpu_count() or 1, namespaces=True, shaped=plan.rate > 0) as nodes:
        rate = f"{plan.rate:g}mbit"
        for node in nodes if plan.rate > 0 else ():
            place = ("class", "change", "dev", INTERFACE, "parent", "1:", "classid", "1:10", "htb")
            run_in_node(node, "tc", *place, "rate", rate, "ceil", rate, "burst", _BURST, "cburst", _BURST)
        yield nodes


def _serve(plan: AllReducePlan, node: TestbedNode, folder: Path) -> None:
    """One rank: measure the link, then run the plan and write the times."""
    import torch
    import torch.distributed as dist

    from rca.runtime.stragglar.execution import all_reduce
    from rca.runtime.stragglar.measured_costs import measured_costs

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    for name, value in TCP.items():
        (Path("/proc/sys/net/ipv4") / name).write_text(value)
    first = node.address.rpartition(".")[0] + ".2"
    dist.init_process_group(
        "gloo", f"tcp://{first}:{_PORT}", TIMEOUT, world_size=plan.n_ranks, rank=node.index
    )
    tensor = torch.ones(plan.n_values)
    algorithms: dict[str, Callable[[], object]] = {
        "ring": lambda: dist.all_reduce(tensor),
        "stragglar": lambda: all_reduce(tensor, plan.straggler),
    }
    for run in algorithms.values():
        run()
    link = _measured_link(plan, node.index)
    is_chosen = measured_costs(straggler=plan.straggler).is_faster(plan.size)
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
    figures = {"begins": begins, "ends": ends, "link": [link.alpha, link.beta], "is_chosen": is_chosen}
    (folder / f"{node.index}.json").write_text(json.dumps(figures))
    dist.barrier()


def _measured_link(plan: AllReducePlan, rank: int) -> Link:
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


def measured_table(plan: AllReducePlan) -> None:
    link, is_chosen, runs = measure(plan)
    n, size = plan.n_ranks, plan.size
    print(
        f"{n} ranks, {size / 2**20:g} MiB, {plan.rate:g} Mbit/s per cable, {plan.repeats} repeats. "
        f"Measured link: {link.alpha * 1e3:.2f} ms per message, {8e-6 / link.beta:.0f} Mbit/s. "
        f"Break-even delay {cost.break_even_delay(n, size, link) * 1e3:.0f} ms. "
        f"The hook takes {'StragglAR' if is_chosen else 'the ring'}."
    )
    rows = []
    for delay in DELAYS:
        of = [run for run in runs if run["delay"] == delay]
        ring, ours = ([run for run in of if run["algorithm"] == name] for name in ALGORITHMS)
        seconds = [np.array([run["seconds"] for run in each]) for each in (ring, ours)]
        ratio = cell(bootstrap(seconds[0] / seconds[1], np.random.default_rng(0), np.median))
        late = [run["late"] for run in ours]
        expected = np.median([cost.stragglar_seconds(n, size, link, each) for each in late])
        times = [f"{1e3 * np.median(each):.0f}" for each in (late, *seconds)]
        rows.append((delay, *times, ratio, f"{cost.ring_seconds(n, size, link) / expected:.2f}"))
    columns = ("delay", "straggler late, ms", "ring, ms", "StragglAR, ms", "ring / StragglAR", "predicted")
    print_table("Median time after the last arrival", columns, rows)


def main() -> None:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks stragglar", description=summary)
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 8], help="sizes of the measured groups")
    parser.add_argument("--mib", type=float, default=4.0, help="size of the tensor")
    parser.add_argument("--mbit", type=float, default=100.0, help="rate of each cable, each direction")
    parser.add_argument("--repeats", type=int, default=6, help="runs of each algorithm and delay")
    options = parser.parse_args()
    if not installed("torch"):
        print("Not measured: PyTorch is not installed.")
        return
    permitted = probe()
    if not (permitted.namespaces and permitted.htb):
        print("Not measured: network namespaces with token buckets are not permitted here.")
        return
    for n_ranks in options.ranks:
        n_values = int(options.mib * 2**20 / 4)
        measured_table(AllReducePlan(n_ranks, n_values, options.mbit, options.repeats))


if __name__ == "__main__":
    main()
