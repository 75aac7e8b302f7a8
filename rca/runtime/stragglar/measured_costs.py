"""Costs of StragglAR and of the ordinary all-reduce, measured on a group's ranks.

The path of CUDA tensors, with NCCL, is written and has not been run on several GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from rca.runtime.stragglar.cost import GroupCosts, Link
from rca.runtime.stragglar.execution import all_reduce
from rca.runtime.stragglar.point_to_point import group_of

#: Bytes of the two tensors that are measured, and how often each.
SMALL, LARGE = 8, 1 << 20
REPEATS = 8
#: The straggler comes so much later at least, so that the others are there.
MIN_DELAY = 0.005


def measured_costs(
    group: dist.ProcessGroup | None = None,
    straggler: int | None = None,
    agree: Callable[[], object] | None = None,
) -> GroupCosts:
    """Measure a group; all of its ranks call it together, and all get the same. It takes about a second.

    Parameters
    ----------
    straggler
        Rank within the group; the last one if not given.
    agree
        How the ranks find out who is last, if they do.
    """
    group = group_of(group)
    late = group.size() - 1 if straggler is None else straggler
    is_nccl = group.name() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")

    def measured(call: Callable[[], object], delay: float) -> float:
        return _seconds(call, group, late, delay, device)

    ordinary, ours = [], []
    for size in (SMALL, LARGE):
        tensor = torch.zeros(size, dtype=torch.uint8, device=device)
        ordinary.append(measured(partial(dist.all_reduce, tensor, group=group), MIN_DELAY))
        # In the time of an ordinary all-reduce the others have done their part.
        ours.append(measured(partial(all_reduce, tensor, late, group), ordinary[-1] + MIN_DELAY))
    agreement = 0.0 if agree is None else measured(agree, MIN_DELAY)
    return GroupCosts(_link(ours), _link(ordinary), agreement)


def _link(seconds: list[float]) -> Link:
    small, large = seconds
    return Link(small, max(large - small, 0.0) / (LARGE - SMALL))


def _seconds(
    call: Callable[[], object], group: dist.ProcessGroup, late: int, delay: float, device: torch.device
) -> float:
    """From the arrival of the last rank to its end, the same on all ranks.

    It is the least of the repeats: other work of the machine only adds to it.
    """
    taken = torch.zeros(REPEATS, device=device)
    for number in range(REPEATS):
        dist.barrier(group)
        if group.rank() == late:
            time.sleep(delay)
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if group.rank() == late:
            taken[number] = time.perf_counter() - began
    dist.all_reduce(taken, group=group)
    return float(taken.min())
