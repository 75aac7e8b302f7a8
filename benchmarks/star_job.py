"""The job of `benchmarks.star`: four workers over gloo, in any mode of STAR, with a rank that is slow."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.small_job import TIMEOUT, data_of, free_port, join, network, run_ranks
from rca.runtime.star.calibration import CalibratedChoice
from rca.runtime.star.grouping import Choice, DynamicGroups, Grouping, Groups, XOrder
from rca.runtime.star.leaving import StragglersLeave
from rca.runtime.star.parameter_server import serve, work
from rca.runtime.star.ring_with_children import RingWithChildren, ddp_hook
from rca.runtime.star.switching_ring import SwitchingRing

N_SAMPLES = 4096
N_WORKERS, SLOW = 4, 1
CHOSEN = "calibrated choice"
WITH_SERVER = ("asynchronous", "x-order", "static groups", "dynamic groups", CHOSEN)
#: Workers are in a dynamic group if their times differ by at most this share of the shortest; a rank that
#: takes longer by more leaves the ring.
LIKE = 0.5
_JOB_SECONDS = 120.0


@dataclass(frozen=True)
class ModeJob:
    """One training; `updates` counts full batches.

    `slow_after` are the steps of the slow rank before it gets slow. `groups` are those of a server's mode;
    one group of `x` is x-order. `probe` measures instead: own times, or the server alone.
    """

    mode: str
    seed: int
    updates: int
    batch: int
    factor: float
    sample_seconds: float
    learning_rate: float
    noise: float | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    group_distance: float = 0.0
    slow_after: int = 0
    probe: bool = False
    port: int = 0
    folder: Path = Path()

    @property
    def has_server(self) -> bool:
        return self.mode in WITH_SERVER

    @property
    def grouping(self) -> Grouping:
        """Of the server; its workers are ranks."""
        if self.mode in ("asynchronous", "x-order"):
            return XOrder(len(self.groups[0]))
        if self.mode in ("dynamic groups", CHOSEN):
            return XOrder(N_WORKERS)
        return Groups(tuple(tuple(worker + 1 for worker in group) for group in self.groups))


class StarWorker:
    """Data, model and the time of a worker's own work."""

    def __init__(self, job: ModeJob, worker: int) -> None:
        self.job, self.worker = job, worker
        self.x, self.y = data_of(N_SAMPLES, job.seed)
        self.model = network(job.seed)
        self.draw = np.random.default_rng([job.seed, worker])
        self.began, self.seconds = 0.0, list[float]()

    def loss(self, model: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Loss of a random batch, after the time of a device."""
        self.began = time.monotonic()
        chosen = self.draw.integers(N_SAMPLES, size=self.job.batch)
        is_slow = self.worker == SLOW and len(self.seconds) >= self.job.slow_after
        time.sleep(self.job.sample_seconds * self.job.batch * (self.job.factor if is_slow else 1.0))
        return torch.nn.functional.cross_entropy(model(self.x[chosen]), self.y[chosen])

    def note(self) -> None:
        """The gradient is ready."""
        self.seconds.append(time.monotonic() - self.began)

    def gradient(self, parameters: torch.Tensor) -> torch.Tensor:
        vector_to_parameters(parameters, self.model.parameters())
        self.model.zero_grad()
        self.loss(self.model).backward()
        found = torch.cat([each.grad.flatten() for each in self.model.parameters()])
        self.note()
        return found


def timed_all_reduce(worker: StarWorker, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    if bucket.is_last():
        worker.note()
    return default_hooks.allreduce_hook(None, bucket)


# DDP compares the types themselves, not their names.
timed_all_reduce.__annotations__ = {
    "bucket": dist.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}


def train_all_reduce(job: ModeJob, worker: StarWorker) -> dict[str, Any]:
    """Synchronous SGD, or a ring that the slow rank has left or leaves when it gets slow."""
    parameters = list(worker.model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=job.learning_rate)
    state: RingWithChildren | None = None
    if job.mode == "ring with children":
        state = RingWithChildren(parameters, [SLOW])
    elif job.mode == "switching ring":
        rule = StragglersLeave(job.batch, job.noise, share=LIKE, every=4)
        state = SwitchingRing(worker.model, optimizer, rule, timeout=TIMEOUT)
    model = DistributedDataParallel(worker.model, process_group=state.group if state else None)
    if state:
        model.register_comm_hook(state, ddp_hook)
    else:
        model.register_comm_hook(worker, timed_all_reduce)
    # A ring of three gets as many samples as four workers at least.
    last = -(-job.updates * N_WORKERS // (N_WORKERS - 1)) if state else job.updates
    dist.barrier()
    began, updates, reports = time.monotonic(), 0, 0
    copies = [(0.0, 0.0, parameters_to_vector(parameters).detach().numpy().copy())]
    while not state.over if state and state.is_child else updates < last:
        optimizer.zero_grad()
        size = len(state.ring) if state else N_WORKERS
        optimizer.param_groups[0]["lr"] = job.learning_rate * size / N_WORKERS
        worker.loss(model).backward()
        if state:
            worker.note()
        optimizer.step()
        if state:
            state.after_step()
        updates = state.ledger.updates if state else updates + 1
        reports = sum(state.ledger.counts) if state else reports + N_WORKERS
        now = time.monotonic() - began
        copies.append((now, reports / N_WORKERS, parameters_to_vector(parameters).detach().numpy().copy()))
    if state:
        state.close()
    changes = [(each.update, each.children) for each in getattr(state, "changes", [])]
    staleness = state.ledger.staleness if state else []
    return {"copies": copies, "seconds": worker.seconds, "staleness": staleness, "changes": changes}


def train_with_server(job: ModeJob, rank: int) -> dict[str, Any]:
    """A parameter server on rank 0; worker w is rank w + 1."""
    worker = StarWorker(job, max(rank - 1, 0))
    parameters = parameters_to_vector(worker.model.parameters()).detach().clone()
    dist.barrier()
    if rank:
        gradient = torch.zeros_like(parameters)
        work(parameters, lambda: gradient if job.probe else worker.gradient(parameters))
        return {"seconds": worker.seconds}
    began, reports = time.monotonic(), 0
    copies = [(0.0, 0.0, parameters.numpy().copy())]

    def update(gradient: torch.Tensor, n_reports: int) -> None:
        nonlocal reports
        reports += n_reports
        parameters.sub_(job.learning_rate * n_reports / N_WORKERS * gradient)
        copies.append((time.monotonic() - began, reports / N_WORKERS, parameters.numpy().copy()))

    choose: Choice | None = None
    if job.mode == "dynamic groups":
        choose = DynamicGroups(job.group_distance, every=4)
    elif job.mode == CHOSEN:
        choose = CalibratedChoice(job.batch, job.noise or 0.0, distance=job.group_distance, every=4)
    found = serve(
        parameters,
        N_WORKERS,
        job.grouping,
        update,
        lambda _: reports >= job.updates * N_WORKERS,
        choose=choose,
    )
    staleness = [each for batch in found.applied for _, each in batch]
    changes = [(number, str(each)) for number, each in found.groupings[1:]]
    return {"copies": copies, "staleness": staleness, "changes": changes}


def rank_main(job: ModeJob, rank: int) -> None:
    join(rank, N_WORKERS + job.has_server, job.port)
    found = train_with_server(job, rank) if job.has_server else train_all_reduce(job, StarWorker(job, rank))
    if rank:
        found.pop("copies", None)
    torch.save(found, job.folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def run(job: ModeJob) -> dict[str, Any]:
    """Run one training on processes of its own; what rank 0 has seen, and the times of all workers."""
    with tempfile.TemporaryDirectory() as name:
        job, size = replace(job, port=free_port(), folder=Path(name)), N_WORKERS + job.has_server
        if any(run_ranks(rank_main, job, size, _JOB_SECONDS)):
            raise SystemExit(f"a rank of the mode {job.mode} has failed or takes too long")
        found = [torch.load(job.folder / f"{rank}.pt", weights_only=False) for rank in range(size)]
    return found[0] | {"own": [each["seconds"] for each in found[job.has_server :]]}
