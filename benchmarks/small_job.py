"""Small training jobs of real processes over gloo, with a device whose time is a pause."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch

# DistributedDataParallel imports it: once here, before the ranks are forked.
import torch._dynamo
import torch.distributed as dist
from scipy import stats

N_FEATURES, N_CLASSES, N_HIDDEN = 20, 4, 64
TIMEOUT = timedelta(seconds=60)


def data_of(n_samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of classes that overlap, so that the loss has a floor above zero."""
    rng = np.random.default_rng(seed)
    y = rng.integers(N_CLASSES, size=n_samples)
    centres = rng.normal(size=(N_CLASSES, N_FEATURES))
    x = centres[y] + rng.normal(scale=1.5, size=(n_samples, N_FEATURES))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def network(seed: int) -> torch.nn.Module:
    """Two layers; the same for the same seed."""
    torch.manual_seed(seed)
    layers = torch.nn.Linear(N_FEATURES, N_HIDDEN), torch.nn.ReLU(), torch.nn.Linear(N_HIDDEN, N_CLASSES)
    return torch.nn.Sequential(*layers)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def join(rank: int, n_ranks: int, port: int) -> dist.TCPStore:
    """Make this process a rank of the job; gives the store that all ranks share."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, n_ranks, is_master=rank == 0, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n_ranks, timeout=TIMEOUT)
    return store


def run_ranks(rank_main: Callable[[Any, int], None], job: Any, n_ranks: int, seconds: float) -> list[int]:
    """Start all ranks and wait for them; gives their exit codes. When one is killed, the others end."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank_main, args=(job, rank)) for rank in range(n_ranks)]
    for each in ranks:
        each.start()
    deadline = time.monotonic() + seconds
    while any(each.is_alive() for each in ranks) and time.monotonic() < deadline:
        if any(each.exitcode not in (0, None) for each in ranks):
            # The peers of a dead rank may wait in the all-reduce.
            for each in ranks:
                each.join(1.0)
                each.kill()
        time.sleep(0.02)
    for each in ranks:
        each.kill()
        each.join()
    return [each.exitcode or 0 for each in ranks]


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean and its 95 % interval over seeds."""
    mean = float(np.mean(values))
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)) if len(values) > 1 else float("nan")
    return {"mean": mean, "lower": mean - half, "upper": mean + half}
