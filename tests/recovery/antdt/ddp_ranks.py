"""Three ranks in DistributedDataParallel with agents, and what each has seen, as JSON.

Each rank takes 3 ms for a sample, rank 1 takes 9 ms: the controller has to make its batches smaller.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from contextlib import nullcontext
from datetime import timedelta

import numpy as np
import torch

# DistributedDataParallel imports it: once here, before the ranks are forked.
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rca.runtime.antdt import Decision, Monitor, NonDedicated, Thresholds
from rca.runtime.antdt.agent import Agent

N_RANKS, N_STEPS, N_FEATURES = 3, 14, 5
#: Unequal from the start, with accumulation: the update has to be that of one batch all the same.
FIRST = Decision.of([4, 10, 6], [2, 1, 1])
RULES = Thresholds(short_seconds=5.0, long_seconds=50.0, least_batches=3)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples of a step; each rank takes its part."""
    rng = np.random.default_rng(step)
    return torch.tensor(rng.normal(size=(FIRST.total, N_FEATURES))), torch.tensor(
        rng.normal(size=FIRST.total)
    )


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(N_FEATURES, 1).double()


def squared_error(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((net(x)[:, 0] - y) ** 2).mean()


def descend(net: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


def run(rank: int, port: int, seen: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", port, N_RANKS, is_master=rank == 0, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=N_RANKS, timeout=limit)
    net = DistributedDataParallel(model())
    agent = Agent(
        store,
        rank,
        FIRST,
        controller=None if rank else NonDedicated(FIRST, restart_seconds=1e9, least_gain=0.2),
        monitor=None if rank else Monitor(N_RANKS, RULES),
        every=4,
    )
    agent.watch(net)
    samples = []
    while agent.begin():
        x, y = batch(agent.step)
        samples.append(agent.decision.samples)
        first = sum(agent.decision.samples[:rank])
        if rank == 0 and agent.step == N_STEPS - 1:
            agent.stop()
        for size, is_last in agent.passes():
            part = slice(first, first + size)
            first += size
            time.sleep(0.003 * size * (3 if rank == 1 else 1))
            with nullcontext() if is_last else net.no_sync():
                (squared_error(net, x[part], y[part]) * agent.loss_scale(size)).backward()
        descend(net)
        agent.end()
    alone = model()
    for step in range(len(samples)):
        squared_error(alone, *batch(step)).backward()
        descend(alone)
    apart = [
        float((a - b).detach().abs().max()) for a, b in zip(net.parameters(), alone.parameters(), strict=True)
    ]
    seen.put({"rank": rank, "samples": samples, "apart": max(apart)})
    dist.destroy_process_group()


def main(port: int) -> None:
    fork = multiprocessing.get_context("fork")
    seen = fork.Queue()
    ranks = [fork.Process(target=run, args=(rank, port, seen)) for rank in range(N_RANKS)]
    for each in ranks:
        each.start()
    found = [seen.get(timeout=90) for _ in ranks]
    for each in ranks:
        each.join()
    sys.stdout.write(json.dumps(sorted(found, key=lambda each: each["rank"])))


if __name__ == "__main__":
    main(int(sys.argv[1]))
