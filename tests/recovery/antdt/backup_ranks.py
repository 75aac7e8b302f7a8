"""A parameter server and three workers that share shards; what each update applied, as JSON.

Worker 3 is too late for each update, and worker 2 is killed while it computes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from stored_shards import NewShards

from rca.runtime.data_shards.shard_plan import ShardPlan
from rca.runtime.data_shards.shard_sampler import ShardSampler
from rca.runtime.star.grouping import FirstReports, XOrder
from rca.runtime.star.parameter_server import serve, work

N_WORKERS, N_SAMPLES, BATCH = 3, 120, 4
PLAN = ShardPlan(N_SAMPLES, 16, lease_seconds=0.5)
LATE, KILLED, KILLED_AT = 3, 2, 5


class Processes(BaseManager):
    """Holds the shards in a process of its own, as a service does."""


Processes.register("shards", NewShards, exposed=("lease", "report", "release", "progress"))


class SharedShards:
    """The `ShardService` of a rank."""

    plan = PLAN

    def __init__(self, held: Any) -> None:
        self.lease, self.report, self.release = held.lease, held.report, held.release


def run(rank: int, port: int, held: Any, folder: str) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", port, N_WORKERS + 1, is_master=rank == 0, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=N_WORKERS + 1, timeout=limit)
    parameters = torch.zeros(2)
    if rank == 0:
        reports = serve(
            parameters,
            N_WORKERS,
            XOrder(N_WORKERS),
            lambda gradient, n: parameters.add_(gradient * n),
            lambda _: held.progress().finished,
            choose=FirstReports(most=1, every=1),
            most_staleness=0,
        )
        found = {"samples": float(parameters[0]), "dropped": reports.stale, "lost": reports.lost}
        Path(folder, "0.json").write_text(json.dumps(found))
        return
    sampler = ShardSampler(SharedShards(held), f"{rank}", report_seconds=0)
    taken: list[int] = []
    n_batches = 0
    with Path(folder, f"{rank}.jsonl").open("w", buffering=1) as log:

        def gradient() -> torch.Tensor:
            nonlocal taken, n_batches
            taken = sampler.take(BATCH).tolist()
            n_batches += 1
            if rank == KILLED and n_batches == KILLED_AT:
                os.kill(os.getpid(), signal.SIGKILL)
            # The device; a worker without samples asks again soon.
            time.sleep(0.05 if rank == LATE else 0.005)
            return torch.tensor([float(len(taken)), 1.0])

        def answered(applied: bool) -> None:
            if applied:
                log.write(json.dumps(taken) + "\n")
                sampler.confirm()
            elif taken:
                sampler.give_back()

        work(parameters, gradient, answered)


def main(port: int, folder: str) -> None:
    fork = multiprocessing.get_context("fork")
    with Processes(ctx=fork) as manager:
        held = manager.shards(PLAN)
        ranks = [fork.Process(target=run, args=(rank, port, held, folder)) for rank in range(N_WORKERS + 1)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join(60)
            each.kill()
    codes = [each.exitcode for each in ranks]
    trained = {
        rank: [json.loads(line) for line in Path(folder, f"{rank}.jsonl").read_text().splitlines()]
        for rank in range(1, N_WORKERS + 1)
    }
    server = json.loads(Path(folder, "0.json").read_text())
    sys.stdout.write(json.dumps({"codes": codes, "trained": trained, "server": server}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
