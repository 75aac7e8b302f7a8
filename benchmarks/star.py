"""STAR on a real job: time to a target loss with a slow rank, against synchronous and asynchronous SGD.

Four workers train over gloo, one of them slowed, in four modes in turn. Modes with a parameter server have
one process more. Losses are computed afterwards, from copies of the parameters, so that they take no time.

Measured: forward, backward, messages, updates, the clock and the loss. Simulated: a pause for each sample
stands for the device. The slow rank works on a processor in addition, or pauses longer with `--slow sleep`.

``--seeds 5 --updates 50 --target 0.25 --slow sleep``, two cores shared with other work, 95 % intervals. All
modes needed as many samples, as the learning rate fell with those of an update. The price of then counted no
staleness, and expected fewer samples.

==================  =================  ============  ===============
mode                seconds to target  speed         predicted speed
==================  =================  ============  ===============
synchronous         0.86 to 3.04       1             1
asynchronous        0.28 to 1.59       1.66 to 2.75  4.57
x-order, x = 3      0.43 to 1.39       1.82 to 2.39  2.68
ring with children  0.40 to 1.41       1.95 to 2.33  2.68
==================  =================  ============  ===============
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch

# DistributedDataParallel imports it: once here, before the ranks are forked.
import torch._dynamo
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.antdt import FORK, free_port, interval
from benchmarks.small_job import data_of, network, spend
from rca.recovery.star.grouping import XOrder
from rca.recovery.star.modes import heuristic_order, static_groups, synchronous, x_order
from rca.recovery.star.noise import noise_scale
from rca.recovery.star.parameter_server import serve, work
from rca.recovery.star.prediction import is_straggler
from rca.recovery.star.price import Progress
from rca.recovery.star.ring_with_children import RingWithChildren, ddp_hook

N_SAMPLES = 4096
N_WORKERS, SLOW = 4, 1
TIMEOUT = timedelta(seconds=60)
MODES = ("synchronous", "asynchronous", "x-order", "ring with children")
_JOB_SECONDS = 120.0


@dataclass(frozen=True)
class Job:
    """One training; `order` is the reports of an update, `updates` counts full batches."""

    mode: str
    seed: int
    order: int
    updates: int
    batch: int
    factor: float
    sample_seconds: float
    slow_by: str
    learning_rate: float
    port: int = 0

    @property
    def has_server(self) -> bool:
        return self.mode in ("asynchronous", "x-order")

    @property
    def n_updates(self) -> int:
        return self.updates * N_WORKERS // self.order

    @property
    def step_size(self) -> float:
        """The learning rate falls with the samples of an update."""
        return self.learning_rate * self.order / N_WORKERS


class Worker:
    """Data, model and the time of a worker's own work."""

    def __init__(self, job: Job, worker: int) -> None:
        self.job, self.worker = job, worker
        self.x, self.y = data_of(N_SAMPLES, job.seed)
        self.model = network(job.seed)
        self.draw = np.random.default_rng([job.seed, worker])
        self.seconds: list[float] = []

    def loss(self, model: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Loss of a random batch, after the time of a device."""
        began = time.monotonic()
        chosen = self.draw.integers(N_SAMPLES, size=self.job.batch)
        factor = self.job.factor if self.worker == SLOW else 1.0
        spend(self.job.sample_seconds * self.job.batch, factor, self.job.slow_by)
        found = torch.nn.functional.cross_entropy(model(self.x[chosen]), self.y[chosen])
        self.seconds.append(time.monotonic() - began)
        return found

    def gradient(self, parameters: torch.Tensor) -> torch.Tensor:
        vector_to_parameters(parameters, self.model.parameters())
        self.model.zero_grad()
        self.loss(self.model).backward()
        return torch.cat([each.grad.flatten() for each in self.model.parameters()])


def train_all_reduce(job: Job, worker: Worker) -> dict[str, Any]:
    """Synchronous SGD, or a ring that the slow rank has left."""
    parameters = list(worker.model.parameters())
    state = RingWithChildren(parameters, [SLOW]) if job.mode == "ring with children" else None
    model = DistributedDataParallel(worker.model, process_group=state.group if state else None)
    if state:
        model.register_comm_hook(state, ddp_hook)
    optimizer = torch.optim.SGD(parameters, lr=job.step_size)
    dist.barrier()
    began, copies = time.monotonic(), []
    copies.append((0.0, parameters_to_vector(parameters).detach().numpy().copy()))
    is_child = state is not None and state.is_child
    while not state.over if is_child and state else len(copies) <= job.n_updates:
        optimizer.zero_grad()
        worker.loss(model).backward()
        optimizer.step()
        if state:
            state.after_step()
        copies.append((time.monotonic() - began, parameters_to_vector(parameters).detach().numpy().copy()))
    if state:
        state.close()
    staleness = state.ledger.staleness if state else []
    return {"copies": copies, "seconds": worker.seconds, "staleness": staleness}


def train_with_server(job: Job, rank: int) -> dict[str, Any]:
    """A parameter server on rank 0; worker w is rank w + 1."""
    worker = Worker(job, max(rank - 1, 0))
    parameters = parameters_to_vector(worker.model.parameters()).detach().clone()
    dist.barrier()
    if rank:
        work(parameters, lambda: worker.gradient(parameters))
        return {"seconds": worker.seconds}
    began = time.monotonic()
    copies = [(0.0, parameters.numpy().copy())]

    def update(gradient: torch.Tensor, n_reports: int) -> None:  # noqa: ARG001
        parameters.sub_(job.step_size * gradient)
        copies.append((time.monotonic() - began, parameters.numpy().copy()))

    reports = serve(parameters, N_WORKERS, XOrder(job.order), update, lambda done: done == job.n_updates)
    staleness = [each for batch in reports.applied for _, each in batch]
    return {"copies": copies, "staleness": staleness}


def rank_main(job: Job, rank: int, results: multiprocessing.Queue[tuple[int, dict[str, Any]]]) -> None:
    torch.set_num_threads(1)
    size = N_WORKERS + job.has_server
    store = dist.TCPStore("127.0.0.1", job.port, size, is_master=rank == 0, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    found = train_with_server(job, rank) if job.has_server else train_all_reduce(job, Worker(job, rank))
    if rank:
        found.pop("copies", None)
    results.put((rank, found))
    dist.barrier()
    dist.destroy_process_group()


def run(job: Job) -> dict[str, Any]:
    """Run one training on processes of its own; what rank 0 has seen, and the seconds of all workers."""
    job, results = replace(job, port=free_port()), FORK.Queue()
    size = N_WORKERS + job.has_server
    ranks = [FORK.Process(target=rank_main, args=(job, rank, results)) for rank in range(size)]
    for each in ranks:
        each.start()
    found: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + _JOB_SECONDS
    try:
        while len(found) < size:
            if any(each.exitcode not in (0, None) for each in ranks) or time.monotonic() > deadline:
                raise SystemExit(f"a rank of the mode {job.mode} has failed or takes too long")
            with suppress(queue.Empty):
                found |= [results.get(timeout=1.0)]
    finally:
        for each in ranks:
            each.join(10)
            each.kill()
    workers = [found[worker + job.has_server] for worker in range(N_WORKERS)]
    return found[0] | {"seconds": [float(np.median(each["seconds"])) for each in workers]}


def loss_of(job: Job, vector: np.ndarray) -> float:
    model, (x, y) = network(job.seed), data_of(N_SAMPLES, job.seed)
    with torch.no_grad():
        vector_to_parameters(torch.from_numpy(vector), model.parameters())
        return float(torch.nn.functional.cross_entropy(model(x), y))


def to_target(job: Job, copies: list[tuple[float, np.ndarray]], target: float) -> tuple[float, float]:
    """Seconds and full batches until the loss is at the target for the first time; infinite if never."""
    for number, (at, vector) in enumerate(copies):
        if loss_of(job, vector) <= target:
            return at, number * job.order / N_WORKERS
    return float("inf"), float("inf")


def measured_noise(job: Job, vector: np.ndarray, draws: int = 200) -> float | None:
    """Gradient noise scale at some parameters, from batches of one worker and of all."""
    worker = Worker(replace(job, sample_seconds=0.0), 0)
    small, large = [], []
    for _ in range(draws):
        parts = torch.stack([worker.gradient(torch.from_numpy(vector)) for _ in range(N_WORKERS)])
        small.append(float(parts.square().sum(dim=1).mean()))
        large.append(float(parts.mean(dim=0).square().sum()))
    return noise_scale(np.array(small), np.array(large), job.batch, job.batch * N_WORKERS).samples


def predicted(progress: Progress, mode: str, order: int) -> float:
    """Speed against synchronous SGD by the price of `rca.recovery.star.modes`."""
    if mode == "asynchronous":
        seconds = static_groups(progress, 1).seconds
    elif mode == "x-order":
        seconds = x_order(progress, order).seconds
    elif mode == "ring with children":
        ring = tuple(worker for worker in range(N_WORKERS) if worker != SLOW)
        seconds = progress.of_groups([ring])
    else:
        seconds = synchronous(progress).seconds
    return synchronous(progress).seconds / seconds


def measure(options: argparse.Namespace) -> dict[str, Any]:
    job = Job(
        "synchronous", 1000, N_WORKERS, options.updates, options.batch, options.factor,
        options.sample_seconds, options.slow, options.learning_rate,
    )  # fmt: skip
    first = run(replace(job, updates=max(options.updates // 4, 8)))
    noise = measured_noise(job, first["copies"][len(first["copies"]) // 2][1])
    if noise is None:
        raise SystemExit("the gradient is within the noise; give larger batches")
    progress = Progress(np.array(first["seconds"]), job.batch, noise)
    order = heuristic_order(progress)
    orders = {
        "synchronous": N_WORKERS,
        "asynchronous": 1,
        "x-order": order,
        "ring with children": N_WORKERS - 1,
    }
    rows: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for seed in range(options.seeds):
        # Seeds differ in the order, so that a change of the machine's load hits all modes alike.
        for mode in np.random.default_rng(seed).permutation(MODES):
            each = replace(job, mode=str(mode), seed=seed, order=orders[mode])
            found = run(each)
            seconds, batches = to_target(each, found["copies"], options.target)
            rows[mode].append(
                {
                    "seconds": seconds,
                    "full batches": batches,
                    "staleness": float(np.mean(found["staleness"])) if found["staleness"] else 0.0,
                    "final loss": loss_of(each, found["copies"][-1][1]),
                }
            )
    figures: dict[str, Any] = {}
    for mode in MODES:
        names = rows[mode][0]
        figures[mode] = {name: interval([row[name] for row in rows[mode]]) for name in names}
        pairs = zip(rows["synchronous"], rows[mode], strict=True)
        figures[mode]["speed"] = interval([sync["seconds"] / row["seconds"] for sync, row in pairs])
        figures[mode]["predicted speed"] = predicted(progress, mode, order)
        figures[mode]["reached"] = sum(np.isfinite(row["seconds"]) for row in rows[mode])
    stragglers = np.flatnonzero(is_straggler(progress.seconds)).tolist()
    before = {"workers": first["seconds"], "stragglers": stragglers, "noise": noise, "order": order}
    return {"modes": figures} | before


def render(found: dict[str, Any], options: argparse.Namespace) -> None:
    console = Console(width=130)
    console.print(
        f"{N_WORKERS} workers, batches of {options.batch}, one slowed {options.factor:g} times "
        f"({options.slow}); {options.seeds} seeds; target loss {options.target:g}. Intervals: 95 %."
    )
    steps = ", ".join(f"{1e3 * each:.0f}" for each in found["workers"])
    console.print(
        f"Measured before: steps of {steps} ms, stragglers {found['stragglers']}, gradient noise scale "
        f"{found['noise']:.0f} samples; the heuristic takes x = {found['order']}."
    )
    table = Table(
        "mode", "seconds to target", "speed", "predicted", "full batches", "staleness", "final loss",
        "reached",
        box=None, pad_edge=False,
    )  # fmt: skip
    for mode, each in found["modes"].items():
        cells = [
            f"{each[name]['mean']:.3g} [{each[name]['lower']:.3g}, {each[name]['upper']:.3g}]"
            for name in ("seconds", "speed")
        ]
        means = [f"{each[name]['mean']:.3g}" for name in ("full batches", "staleness", "final loss")]
        reached = f"{each['reached']}/{options.seeds}"
        table.add_row(mode, *cells, f"{each['predicted speed']:.2f}", *means, reached)
    console.print(table)
    console.print(
        "Measured: gradients, messages, updates, clock, loss. Simulated: a device is a pause per sample."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks star", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each mode")
    parser.add_argument("--updates", type=int, default=200, help="full batches of each training")
    parser.add_argument("--batch", type=int, default=16, help="samples of a worker and step")
    parser.add_argument("--factor", type=float, default=4.0, help="how slow the slow rank is")
    parser.add_argument("--sample-seconds", type=float, default=1e-3, help="time of a device for a sample")
    parser.add_argument("--slow", choices=["sleep", "work"], default="work", help="what slows it")
    parser.add_argument("--learning-rate", type=float, default=0.2, help="of an update from all workers")
    parser.add_argument("--target", type=float, default=0.1, help="loss over all samples to reach")
    options = parser.parse_args()
    render(measure(options), options)


if __name__ == "__main__":
    main()
