"""Gloo: the gradients' all-reduce within a stage, activations and their gradients between stages."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from rca.lab.testbed.scenario import TestbedJob

ACTIVATION_FLOATS = 16 * 1024
TIMEOUT = timedelta(seconds=60)


class Collectives:
    """Communication of one rank with the others.

    Tensors of a real size travel between stages. The next stage computes on its own batch instead of their
    content, so that sockets need no device memory.
    """

    def __init__(self, rank: int, job: TestbedJob, rendezvous: str) -> None:
        import torch
        import torch.distributed as dist

        dist.init_process_group(
            "gloo", init_method=rendezvous, rank=rank, world_size=job.world_size, timeout=TIMEOUT
        )
        self._dist = dist
        self._replicas = job.data
        self._group = _stage_group(dist, rank, job)
        stage = job.stage_of(rank)
        self._previous = rank - job.data if stage > 0 else None
        self._next = rank + job.data if stage < job.pipeline - 1 else None
        self._buffer = torch.zeros(ACTIVATION_FLOATS)
        dist.barrier()

    def all_reduce(self, gradients: Any) -> None:
        """Average gradients over the replicas of this stage, in place."""
        if self._replicas > 1:
            self._dist.all_reduce(gradients, group=self._group)
            gradients /= self._replicas

    def receive_activations(self) -> float:
        """Wait for the previous stage; return the seconds."""
        return self._receive(self._previous)

    def send_activations(self) -> float:
        return self._send(self._next)

    def receive_gradients(self) -> float:
        """Wait for the next stage; return the seconds."""
        return self._receive(self._next)

    def send_gradients(self) -> float:
        return self._send(self._previous)

    def leave(self) -> None:
        """Leave together with all ranks: an early end would look like a crash."""
        self._dist.barrier()
        self._dist.destroy_process_group()

    def _receive(self, peer: int | None) -> float:
        if peer is None:
            return 0.0
        began = time.monotonic()
        self._dist.recv(self._buffer, src=peer)
        return time.monotonic() - began

    def _send(self, peer: int | None) -> float:
        if peer is None:
            return 0.0
        began = time.monotonic()
        self._dist.send(self._buffer, dst=peer)
        return time.monotonic() - began


def _stage_group(dist: Any, rank: int, job: TestbedJob) -> Any:
    """The group of the rank's stage; every rank has to take part in creating every group."""
    if job.pipeline == 1:
        return None
    groups = [dist.new_group(job.ranks_of_stage(stage)) for stage in range(job.pipeline)]
    return groups[job.stage_of(rank)]
