"""Messages between two ranks, and the reduce-scatter of the ranks that wait for the straggler."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from rca.errors import InvalidInput


def exchange(
    group: dist.ProcessGroup,
    sent: tuple[Tensor, int] | None,
    received: tuple[Tensor, int] | None,
) -> None:
    """Send to one rank and receive from one rank at the same time, and wait for both.

    Parameters
    ----------
    sent, received
        Tensor and rank within the group. Tensors without elements are not sent.
    """
    parts = [part for part in (sent, received) if part is not None and part[0].numel()]
    if parts and parts[0][0].is_cuda:
        # NCCL needs both in one call: each rank would wait for the other.
        calls = [dist.isend if part is sent else dist.irecv for part in parts]
        pairs = zip(calls, parts, strict=True)
        operations = [dist.P2POp(call, part[0], group=group, group_peer=part[1]) for call, part in pairs]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return
    # Gloo announces a receive to the sender. Behind the data of a send, that would halve the speed.
    coming = None if received is None else receive(group, *received)
    finish(coming, None if sent is None else send(group, *sent))


def send(group: dist.ProcessGroup, tensor: Tensor, rank: int) -> dist.Work | None:
    """Begin to send a CPU tensor to a rank of the group, without the checks of `dist.isend`.

    These take longer than a small message. None for a tensor without elements.
    """
    return group.send([tensor], rank, 0) if tensor.numel() else None


def receive(group: dist.ProcessGroup, tensor: Tensor, rank: int) -> dist.Work | None:
    """Begin to receive a CPU tensor from a rank of the group; None for one without elements."""
    return group.recv([tensor], rank, 0) if tensor.numel() else None


def finish(*works: dist.Work | None) -> None:
    """Wait for messages."""
    for work in works:
        if work is not None:
            work.wait()


def ring_reduce_scatter(
    chunks: Sequence[Tensor], ring: Sequence[int], position: int, group: dist.ProcessGroup
) -> None:
    """Sum chunk i over the ring into the rank at position i; the other chunks hold partial sums afterwards.

    Parameters
    ----------
    chunks
        As many as ranks in the ring.
    ring
        Ranks within the group.
    position
        Place of the calling rank in the ring.
    """
    size = len(ring)
    scratch = torch.empty_like(max(chunks, key=torch.numel))
    for step in range(size - 1):
        outgoing = chunks[(position - step - 1) % size]
        own = chunks[(position - step - 2) % size]
        incoming = scratch[: own.numel()]
        exchange(group, (outgoing, ring[(position + 1) % size]), (incoming, ring[(position - 1) % size]))
        own.add_(incoming)


def group_of(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group, or the default group.

    Raises
    ------
    InvalidInput
        If the calling process is not a rank of it.
    """
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, dist.ProcessGroup):
        raise InvalidInput(
            "this process is not a rank of the group",
            hint="call torch.distributed.init_process_group first, and only on ranks of the group",
        )
    return found


def flat_of(tensor: Tensor) -> Tensor:
    """The tensor's elements in one dimension: a view if possible, else a copy for `write_back`.

    Raises
    ------
    InvalidInput
        If its values cannot be added.
    """
    if tensor.dtype is torch.bool or tensor.is_sparse or tensor.is_quantized:
        raise InvalidInput(
            f"a tensor of {tensor.dtype} and layout {tensor.layout} cannot be summed",
            hint="give a dense tensor of numbers",
        )
    return tensor.detach().contiguous().view(-1)


def write_back(flat: Tensor, tensor: Tensor) -> None:
    """Copy the result into the tensor if `flat` is not a view of it."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view_as(tensor))
