"""One rank of the job that `benchmarks.antdt` measures: data parallel training over gloo, one slow rank.

A sample costs each rank a pause, which stands for the time of its device. The slow rank pauses longer.
Forward, backward, all-reduce and optimizer are real.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.small_job import data_of, join, network
from rca.runtime.antdt import Decision, Monitor, NonDedicated, Thresholds, equal, loss_scale
from rca.runtime.antdt.agent import Agent
from rca.runtime.data_shards.leases import Checkpoint
from rca.runtime.data_shards.shard_client import ShardClient
from rca.runtime.data_shards.shard_plan import ShardPlan
from rca.runtime.data_shards.shard_sampler import ShardSampler

LEARNING_RATE = 0.2
#: Windows of a job that lasts seconds.
RULES = Thresholds(short_seconds=2.0, long_seconds=20.0)
#: A worker that is silent for so long loses its shards; a step takes a tenth of a second.
LEASE_SECONDS = 30.0
#: Two requests for so many samples.
SHARD_SIZE = 32


@dataclass(frozen=True)
class ShardedJob:
    """What all ranks of one start have in common."""

    folder: Path
    url: str
    port: int
    seeds: tuple[int, ...]
    n_ranks: int = 4
    n_samples: int = 2048
    n_epochs: int = 2
    batch: int = 64
    slow_rank: int = 1
    slow_factor: float = 4.0
    sample_seconds: float = 5e-3
    life: int = 0
    #: Steps between checkpoints, and where rank 2 kills itself; 0 for never.
    checkpoint_every: int = 0
    kill_step: int = 0

    def plan(self, seed: int) -> ShardPlan:
        return ShardPlan(self.n_samples, SHARD_SIZE, self.n_epochs, seed, lease_seconds=LEASE_SECONDS)

    @property
    def n_steps(self) -> int:
        return self.n_samples * self.n_epochs // self.batch


@dataclass
class SeenTraining:
    """What rank 0 has seen of one training."""

    mode: str
    seed: int
    ends: list[float] = field(default_factory=list)
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    samples: int = 0
    loss: float = 0.0
    predicted: list[tuple[float, float]] = field(default_factory=list)


def device_time(job: ShardedJob, rank: int, n_samples: int) -> None:
    """Spend the time of a device on some samples."""
    factor = job.slow_factor if rank == job.slow_rank else 1.0
    time.sleep(factor * job.sample_seconds * n_samples)


def static_batches(job: ShardedJob, seed: int, rank: int) -> Iterator[np.ndarray]:
    """Equal shares, fixed before the job begins."""
    size = job.batch // job.n_ranks
    for epoch in range(job.n_epochs):
        order = np.random.default_rng([seed, epoch]).permutation(job.n_samples)
        mine = order[rank :: job.n_ranks]
        for first in range(0, mine.size - size + 1, size):
            yield mine[first : first + size]


def train_static(job: ShardedJob, rank: int, seed: int) -> SeenTraining:
    """Static data parallelism."""
    run, (x, y) = SeenTraining("static", seed), data_of(job.n_samples, seed)
    model = DistributedDataParallel(network(seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    dist.barrier()
    run.ends.append(time.perf_counter())
    for batch in static_batches(job, seed, rank):
        device_time(job, rank, batch.size)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        run.ends.append(time.perf_counter())
        run.samples += job.batch
    return finished(run, model, x, y)


def train_antdt(job: ShardedJob, rank: int, seed: int, store: Any) -> SeenTraining:
    """Shards from the service, and batch sizes from the controller."""
    run, (x, y) = SeenTraining("antdt", seed), data_of(job.n_samples, seed)
    model = DistributedDataParallel(network(seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    service = ShardClient(job.url, f"seed-{seed}-{bool(job.checkpoint_every)}", job.plan(seed))
    begun = resumed(job, rank, model.module, service) if job.life else 0
    sampler = ShardSampler(service, f"rank-{rank}-life-{job.life}", background=True)
    first = Decision.of(equal(job.n_ranks, job.batch))
    agent = Agent(
        store,
        rank,
        first,
        controller=NonDedicated(first, restart_seconds=3600.0, least_gain=0.1) if rank == 0 else None,
        monitor=Monitor(job.n_ranks, RULES) if rank == 0 else None,
        prefix=f"antdt-{seed}",
        on_action=lambda action: run.predicted.append((action.before, action.after)),
        waited=lambda: sampler.waited_seconds,
    )
    agent.watch(model)
    dist.barrier()
    run.ends.append(time.perf_counter())
    with (job.folder / f"trained-{seed}-{rank}-{job.life}.jsonl").open("w", buffering=1) as log:
        while agent.begin():
            step = begun + agent.step
            optimizer.zero_grad()
            trained: list[int] = []
            for size, is_last in agent.passes():
                batch = sampler.take(size)
                if rank == 0 and sampler.finished:
                    # All samples of all ranks are reported.
                    agent.stop()
                if job.kill_step and step == job.kill_step and rank == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                device_time(job, rank, batch.size)
                used = batch if batch.size else np.zeros(1, dtype=np.int64)
                with nullcontext() if is_last else model.no_sync():
                    loss = torch.nn.functional.cross_entropy(model(x[used]), y[used])
                    (loss * agent.loss_scale(batch.size)).backward()
                trained += batch.tolist()
            optimizer.step()
            log.write(json.dumps([step, trained]) + "\n")
            sampler.confirm()
            agent.end()
            run.ends.append(time.perf_counter())
            run.sizes.append(agent.decision.samples)
            if job.checkpoint_every and (step + 1) % job.checkpoint_every == 0:
                keep(job, rank, step + 1, model.module, sampler, service)
    sampler.close()
    run.samples = job.n_samples * job.n_epochs
    return finished(run, model, x, y)


def finished(run: SeenTraining, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> SeenTraining:
    with torch.no_grad():
        run.loss = float(torch.nn.functional.cross_entropy(model(x), y))
    dist.barrier()
    return run


def keep(
    job: ShardedJob, rank: int, step: int, model: torch.nn.Module, sampler: ShardSampler, service: ShardClient
) -> None:
    """Keep the model and the shards as they are after a step; the job has a barrier at checkpoints anyway."""
    sampler.flush()
    dist.barrier()
    if rank == 0:
        made = {"step": step, "model": model.state_dict(), "shards": asdict(service.checkpoint())}
        torch.save(made, job.folder / "checkpoint.new")
        (job.folder / "checkpoint.new").replace(job.folder / "checkpoint.pt")
    dist.barrier()


def resumed(job: ShardedJob, rank: int, model: torch.nn.Module, service: ShardClient) -> int:
    """Load the checkpoint; gives its step."""
    kept = torch.load(job.folder / "checkpoint.pt")
    model.load_state_dict(kept["model"])
    if rank == 0:
        service.restore(Checkpoint(**kept["shards"]))
    dist.barrier()
    return int(kept["step"])


def gradient_error(job: ShardedJob, rank: int) -> float:
    """Largest difference between the update of unequal batches and that of one batch, as a share of it."""
    decision = Decision.of(np.arange(1, job.n_ranks + 1) ** 2)
    (x, y), model = data_of(job.n_samples, 0), DistributedDataParallel(network(0))
    ends = np.cumsum(decision.samples)
    mine = slice(int(ends[rank]) - decision.samples[rank], int(ends[rank]))
    loss = torch.nn.functional.cross_entropy(model(x[mine]), y[mine])
    (loss * loss_scale(decision.samples[rank], job.n_ranks, decision.total)).backward()
    whole = network(0)
    torch.nn.functional.cross_entropy(whole(x[: decision.total]), y[: decision.total]).backward()
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs)


def rank_main(job: ShardedJob, rank: int) -> None:
    """Train with each seed in both modes; rank 0 writes what it has seen."""
    store = join(rank, job.n_ranks, job.port)
    runs = []
    error = gradient_error(job, rank)
    for seed in job.seeds:
        modes = ["antdt"] if job.checkpoint_every else ["static", "antdt"]
        for mode in modes if seed % 2 == 0 else modes[::-1]:
            ran = train_static(job, rank, seed) if mode == "static" else train_antdt(job, rank, seed, store)
            runs.append(asdict(ran))
    if rank == 0:
        (job.folder / f"runs-{job.life}-{job.kill_step}.json").write_text(
            json.dumps({"runs": runs, "gradient_error": error})
        )
    dist.destroy_process_group()
