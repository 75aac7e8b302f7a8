"""All-reduce in which stragglers leave the ring and hang off its ranks as children.

The ring averages its gradients and never waits for a child. A child sends its gradient to its parent when it
is ready. The parent adds it to its own in the next update, and sends back the parameters after that update.
So each gradient of a child is applied once, in one update, or dropped and counted as stale.

References
----------
.. [1] STAR, arXiv 2512.09685.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from rca.errors import InvalidInput
from rca.runtime.star.mailbox import Mailbox

#: Updates after which a gradient is dropped, if nothing else is given.
MAX_STALENESS = 16
#: A message begins with the number of updates in the parameters that it was computed from or contains, and
#: whether the sender has ended.
HEADER = 2


@dataclass
class Ledger:
    """Gradients as one rank has seen them.

    Attributes
    ----------
    updates : int
        Updates of the model so far.
    sent : int
        Gradients that this child has sent.
    staleness : list of int
        Of each child's gradient that this parent has applied: updates since its parameters.
    stale : int
        Gradients of children that this parent has dropped.
    counts : list of int
        Gradients that each update averaged, over all ranks of the ring.
    """

    updates: int = 0
    sent: int = 0
    stale: int = 0
    staleness: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    @property
    def applied(self) -> int:
        """Gradients of children that this parent has applied."""
        return len(self.staleness)


class RingWithChildren:
    """State of `ddp_hook` on one rank. All ranks of the default group create it together.

    Wrap the model with ``process_group=state.group`` and register the hook. Call `after_step` after each step
    of the optimizer. Ranks of the ring call `close` after the last step; a child trains until `over`.

    The parameters of a child are those of its parent: its optimizer has no effect. Buffers of the model, such
    as running means, are not exchanged. If a child ends, the ring goes on without it.

    Parameters
    ----------
    parameters : sequence of Tensor
        ``list(model.parameters())``: on the CPU and of one type.
    stragglers : sequence of int
        Ranks that become children. A diagnosis or `rca.runtime.star.usual_step` names them.
    most_staleness : int
        A gradient whose parameters are more updates old is dropped.

    Attributes
    ----------
    group : ProcessGroup
        Of the ring, or of this child alone.
    over : bool
        Whether the ring has closed.

    Raises
    ------
    InvalidInput
        If a straggler is no rank, no rank is left for the ring, or the parameters cannot be sent.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        stragglers: Sequence[int],
        *,
        most_staleness: int = MAX_STALENESS,
    ) -> None:
        world, self.rank = dist.get_world_size(), dist.get_rank()
        self.children = sorted(set(stragglers))
        self.ring = [rank for rank in range(world) if rank not in self.children]
        if not self.ring or any(not 0 <= rank < world for rank in self.children):
            raise InvalidInput(
                f"stragglers {self.children} leave no ring of {world} ranks",
                hint="name some ranks of the default group, not all",
            )
        _check(parameters)
        self.parameters = list(parameters)
        self.most_staleness = most_staleness
        self.ledger, self.over = Ledger(), False
        ends = torch.tensor([each.numel() for each in self.parameters]).cumsum(0).tolist()
        self._place = {id(each): end - each.numel() for each, end in zip(self.parameters, ends, strict=True)}
        self._size = int(ends[-1])
        # Children are dealt out in turn.
        self._parent = self.ring[self.children.index(self.rank) % len(self.ring)] if self.is_child else None
        self._group_all()
        self._gradient = torch.empty(0)
        self._taken: list[tuple[int, Tensor]] = []
        self._is_first_bucket = True
        self._synchronise_first()
        self._mailboxes = [Mailbox(child, self._message(0)) for child in self.mine]

    @property
    def is_child(self) -> bool:
        return self.rank in self.children

    @property
    def mine(self) -> list[int]:
        """Children of this rank."""
        return [] if self.is_child else self.children[self.ring.index(self.rank) :: len(self.ring)]

    @property
    def arrived(self) -> int:
        """Gradients of children that wait for the next update of this rank."""
        return sum(box.is_full for box in self._mailboxes)

    def after_step(self) -> None:
        """Exchange parameters, after the optimizer: parents answer without waiting, children wait for it."""
        if self.is_child:
            answer = self._message(0)
            dist.recv(answer, src=self._parent)
            self.ledger.updates, self.over = int(answer[0]), bool(answer[1])
            self._load(answer)
            return
        self.ledger.updates += 1
        answered = {child for child, _ in self._taken}
        self._taken = []
        for box in self._mailboxes:
            if box.child in answered:
                box.answer(self._parameters(over=False))

    def close(self) -> None:
        """End the job on a rank of the ring: waits for its children, and counts what they send as stale.

        Children that wait for the answer of a failed update get it at once. A second call does nothing.
        """
        if self.is_child:
            return
        boxes, self._mailboxes = self._mailboxes, []
        answered = {child for child, _ in self._taken}
        for box in boxes:
            if box.child in answered:
                box.close(self._parameters(over=True))
            elif box.take(wait=True) is not None:
                self.ledger.stale += 1
                box.close(self._parameters(over=True))

    def of_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Average a bucket over the ring and what children have sent; a child only keeps it to be sent."""
        if self.is_child:
            return self._keep(bucket)
        if self._is_first_bucket:
            # One decision for all buckets: a gradient belongs to one update as a whole.
            self._taken = [
                (box.child, taken) for box in self._mailboxes if (taken := self._arrived(box)) is not None
            ]
            self.ledger.counts.append(0)
        self._is_first_bucket = bucket.is_last()
        buffer = bucket.buffer()
        for _, gradient in self._taken:
            for parameter, part in zip(bucket.parameters(), bucket.gradients(), strict=True):
                part.add_(self._part(gradient, parameter))
        total = torch.cat((buffer, buffer.new_tensor([1.0 + len(self._taken)])))
        counts, position = self.ledger.counts, len(self.ledger.counts) - 1

        def mean(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            summed = done.value()[0]
            counts[position] = int(summed[-1])
            return buffer.copy_(summed[:-1]).div_(summed[-1])

        work = dist.all_reduce(total, group=self.group, async_op=True)
        averaged: torch.futures.Future[Tensor] = work.get_future().then(mean)
        return averaged

    def _keep(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        if self._is_first_bucket:
            self._gradient = self._message(self.ledger.updates)
        self._is_first_bucket = bucket.is_last()
        for parameter, part in zip(bucket.parameters(), bucket.gradients(), strict=True):
            self._part(self._gradient, parameter).copy_(part)
        if bucket.is_last():
            dist.send(self._gradient, dst=self._parent)
            self.ledger.sent += 1
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        # The optimizer's step with it is overwritten by the parameters of the parent.
        done.set_result(bucket.buffer())
        return done

    def _arrived(self, box: Mailbox) -> Tensor | None:
        """A gradient to apply now. A stale one is answered at once."""
        message = box.take()
        if message is None:
            return None
        staleness = self.ledger.updates - int(message[0])
        if staleness > self.most_staleness:
            self.ledger.stale += 1
            box.answer(self._parameters(over=False))
            return None
        self.ledger.staleness.append(staleness)
        return message

    def _group_all(self) -> None:
        # All ranks create all groups, in the same order.
        groups = [
            (ranks, dist.new_group(ranks)) for ranks in (self.ring, *([each] for each in self.children))
        ]
        self.group = next(group for ranks, group in groups if self.rank in ranks)

    def _synchronise_first(self) -> None:
        first = self._parameters(over=False)
        dist.broadcast(first, src=self.ring[0])
        self._load(first)

    def _message(self, updates: int) -> Tensor:
        message = self.parameters[0].new_zeros(HEADER + self._size, requires_grad=False)
        message[0] = updates
        return message

    def _parameters(self, *, over: bool) -> Tensor:
        message = self._message(self.ledger.updates)
        message[1] = over
        for parameter in self.parameters:
            self._part(message, parameter).copy_(parameter.detach())
        return message

    def _load(self, message: Tensor) -> None:
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.copy_(self._part(message, parameter))

    def _part(self, message: Tensor, parameter: Tensor) -> Tensor:
        first = HEADER + self._place[id(parameter)]
        return message[first : first + parameter.numel()].view_as(parameter)


def ddp_hook(state: RingWithChildren, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Communication hook: ``model.register_comm_hook(state, ddp_hook)``."""
    return state.of_bucket(bucket)


def _check(parameters: Sequence[Tensor]) -> None:
    kinds = {(each.dtype, each.device.type) for each in parameters}
    if kinds not in ({(torch.float32, "cpu")}, {(torch.float64, "cpu")}):
        raise InvalidInput(
            f"parameters of {sorted(map(str, kinds))} cannot be sent to children",
            hint="use parameters of float32 or float64 on the CPU, with gloo",
        )
