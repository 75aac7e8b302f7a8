"""StragglAR over `torch.distributed`: the others reduce-scatter while they wait for the straggler."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from rca.errors import InvalidInput
from rca.runtime.stragglar.point_to_point import (
    exchange,
    finish,
    flat_of,
    group_of,
    receive,
    ring_reduce_scatter,
    send,
    write_back,
)
from rca.runtime.stragglar.schedule import schedule


class Round(NamedTuple):
    """What one rank does in a round: `None` for nothing, else a rank of the group and a chunk."""

    sent: tuple[int, int] | None
    received: tuple[int, int] | None
    adds: bool


def all_reduce(tensor: Tensor, straggler: int, group: dist.ProcessGroup | None = None) -> None:
    """Sum a tensor over the group in place. The others start without waiting for `straggler`.

    The result is the same on every rank, bit by bit. It differs from that of `torch.distributed.all_reduce`
    by the order of summation. A wrong `straggler` costs time, not correctness.

    Gloo takes a message for sent when the kernel holds it. On a slow link give TCP small buffers
    (``net.ipv4.tcp_wmem``): with deep ones, messages of several rounds share the link.

    Parameters
    ----------
    tensor
        Dense tensor of numbers, of the same shape and type on every rank.
    straggler
        Rank within the group, the same on every rank.
    group
        The default group if None.

    Raises
    ------
    InvalidInput
        If the straggler is not a rank of the group, or the tensor cannot be summed.
    """
    group = group_of(group)
    n_ranks, rank = group.size(), group.rank()
    check_straggler(straggler, n_ranks)
    flat = flat_of(tensor)
    if n_ranks == 1:
        return
    chunks = torch.tensor_split(flat, n_ranks - 1)
    if rank != straggler:
        others = [each for each in range(n_ranks) if each != straggler]
        ring_reduce_scatter(chunks, others, others.index(rank), group)
    run = _by_rounds if flat.is_cuda else _posted_ahead
    run(_rounds_of(n_ranks, straggler, rank), chunks, group)
    write_back(flat, tensor)


def _posted_ahead(rounds: Sequence[Round], chunks: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Run the rounds with all receives posted at once. A rank waits only for what it needs next.

    It sends one message at a time, in the order of the rounds. So its link serves one message of a round.
    """
    posted = [_posted(step, chunks, group) for step in rounds]
    coming: dict[int, dist.Work | None] = {}
    sending: dist.Work | None = None
    for step, (work, target) in zip(rounds, posted, strict=True):
        finish(sending)
        sending = None
        if step.sent is not None:
            peer, number = step.sent
            finish(coming.pop(number, None))
            sending = send(group, chunks[number], peer)
        if step.received is None or target is None:
            continue
        number = step.received[1]
        if step.adds:
            # The partial sum is sent in this round: it must not change before.
            finish(sending, work)
            sending = None
            chunks[number].add_(target)
        else:
            coming[number] = work
    finish(sending, *coming.values())


def _posted(
    step: Round, chunks: Sequence[Tensor], group: dist.ProcessGroup
) -> tuple[dist.Work | None, Tensor | None]:
    """The receive of a round, and where its values come."""
    if step.received is None:
        return None, None
    source, number = step.received
    target = torch.empty_like(chunks[number]) if step.adds else chunks[number]
    return receive(group, target, source), target


def _by_rounds(rounds: Sequence[Round], chunks: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Run the rounds one after the other, each as one call of NCCL. Not run on several GPUs yet."""
    scratch = torch.empty_like(chunks[0])
    for step in rounds:
        sent = None if step.sent is None else (chunks[step.sent[1]], step.sent[0])
        if step.received is None:
            exchange(group, sent, None)
            continue
        source, number = step.received
        target = chunks[number]
        incoming = scratch[: target.numel()] if step.adds else target
        exchange(group, sent, (incoming, source))
        if step.adds:
            target.add_(incoming)


def check_straggler(straggler: int, n_ranks: int) -> None:
    """Refuse a straggler that is not a rank of the group."""
    if not 0 <= straggler < n_ranks:
        raise InvalidInput(
            f"straggler {straggler} is not one of {n_ranks} ranks", hint="give a rank within the group"
        )


@lru_cache(maxsize=256)
def _rounds_of(n_ranks: int, straggler: int, rank: int) -> tuple[Round, ...]:
    rounds = schedule(n_ranks, straggler)
    found = []
    for sent, received in rounds.of_rank(rank):
        found.append(
            Round(
                None if sent is None else (sent.destination, sent.chunk),
                None if received is None else (received.source, received.chunk),
                received is not None and rounds.adds(received),
            )
        )
    return tuple(found)
