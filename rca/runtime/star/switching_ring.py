"""A ring whose stragglers leave and come back while the job runs.

Each update carries the own time of each rank. So after it all ranks of the ring have the same times, and the
same rule gives them the same next ring. They agree without a message and without waiting for a straggler.

=====================  ==================================================================================
change                 when
=====================  ==================================================================================
a rank leaves          after the update in which the rule names it; with children, when others have them
a child comes back     after the update with its next gradient, with the optimizer's state and the buffers
a child gets a parent  with the answer to its next gradient, if its parent is to leave
=====================  ==================================================================================

Parameters are those of the ring at each change, so nothing that was trained is lost. No rank waits for a
child that has ended. If a rank of the ring ends, the others get an error, at the latest after the timeout.

References
----------
.. [1] STAR, arXiv 2512.09685.
"""

import itertools
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.runtime.star.leaving import Rule
from rca.runtime.star.mailbox import Mailbox
from rca.runtime.star.ring_with_children import HEADER, MAX_STALENESS, RingWithChildren
from rca.runtime.star.usual_step import LOOK_BACK, usual_seconds

#: After so long an all-reduce gives up, and the rank gets an error.
TIMEOUT = timedelta(minutes=10)
_NUMBERS = itertools.count()
# The second number of an answer.
_GO_ON, _OVER, _JOIN = range(3)
# In place of a rank's time: its parent has lost it.
_LOST = -1.0
# Parameters with their part of a bucket, its buffer, and what DDP waits for.
_Bucket = tuple[list[tuple[Tensor, Tensor]], Tensor, torch.futures.Future[Tensor]]


@dataclass(frozen=True)
class RingChange:
    """A new ring.

    Attributes
    ----------
    update : int
        It holds for the updates after so many.
    """

    update: int
    ring: tuple[int, ...]
    children: tuple[int, ...]


class SwitchingRing(RingWithChildren):
    """State of `ddp_hook` on one rank. All ranks of the default group create it together.

    Wrap the model with ``process_group=state.group`` and register `ring_with_children.ddp_hook`. Call
    `after_step` after each step of the optimizer while `goes_on`, then `close`. A gradient is averaged as a
    whole when it is complete, so communication does not overlap with the backward pass.

    Parameters
    ----------
    model : Module
        On the CPU, with parameters of one type. Buffers are those of each rank; a rank that comes back gets
        those of the ring.
    optimizer : Optimizer
        A rank that comes back gets the state of the ring.
    rule : callable
        Which ranks are to be children, such as `rca.runtime.star.leaving.StragglersLeave`. It must give the
        same on all ranks for the same values.
    most_staleness : int
        As for `RingWithChildren`.
    timeout : timedelta
        Of the communication in a ring.

    Attributes
    ----------
    changes : list of RingChange
        As this rank has seen them; a child sees those after its return.

    Raises
    ------
    InvalidInput
        If the parameters cannot be sent.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        rule: Rule,
        *,
        most_staleness: int = MAX_STALENESS,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        self._world = dist.get_world_size()
        self._model, self._optimizer, self._rule, self._timeout = model, optimizer, rule, timeout
        # All ranks create their states together, so the same number is the same ring.
        self._name = f"star/{next(_NUMBERS)}"
        self._parents: dict[int, int] = {}
        self._wanted: set[int] = set()
        super().__init__(list(model.parameters()), [], most_staleness=most_staleness)
        self.changes: list[RingChange] = []
        self._times: list[deque[float]] = [deque(maxlen=LOOK_BACK) for _ in range(self._world)]
        self._buckets: list[_Bucket] = []
        self._seen: list[int] = []
        self._began = time.monotonic()

    @property
    def mine(self) -> list[int]:
        """Children of this rank."""
        return [child for child, parent in self._parents.items() if parent == self.rank]

    def goes_on(self, last: int) -> bool:
        """Whether to train another step: a rank of the ring until update `last`, a child until it is over."""
        return not self.over and (self.is_child or self.ledger.updates < last)

    def usual(self) -> FloatArray:
        """Usual time of the own step of each rank, shape (n_ranks,), seconds; NaN where none was measured."""
        return np.array(
            [usual_seconds(np.array([each]))[0] if each else np.nan for each in self._times], dtype=np.float64
        )

    def of_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Keep a bucket; with the last one, average the gradient over the ring or send it to the parent."""
        if self._is_first_bucket:
            self._gradient, self._buckets = self._message(self.ledger.updates), []
        self._is_first_bucket = bucket.is_last()
        pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        for parameter, part in pairs:
            self._part(self._gradient, parameter).copy_(part)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        self._buckets.append((pairs, bucket.buffer(), done))
        if bucket.is_last():
            self._tail(self._gradient)[self.rank] = time.monotonic() - self._began
            self._tail(self._gradient)[-1] = 1.0
            if self.is_child:
                dist.send(self._gradient, dst=self._parent)
                self.ledger.sent += 1
            else:
                self._average()
            self._finish_buckets()
        return done

    def after_step(self) -> None:
        """Exchange parameters and change the ring, after the optimizer. A child waits for its answer."""
        if self.is_child:
            self._receive_answer()
        else:
            self.ledger.updates += 1
            self._change()
        self._began = time.monotonic()

    def _average(self) -> None:
        self._taken = [
            (box.child, taken) for box in self._mailboxes if (taken := self._arrived(box)) is not None
        ]
        for _, gradient in self._taken:
            self._gradient += gradient
        for box in self._mailboxes:
            if box.has_ended:
                self._tail(self._gradient)[box.child] = _LOST
        self._ring_group.allreduce([self._gradient]).wait()
        tail = self._tail(self._gradient)
        count = float(tail[-1])
        self.ledger.counts.append(round(count))
        seconds = tail[: self._world].tolist()
        self._seen = [rank for rank, each in enumerate(seconds) if each > 0]
        for rank, each in enumerate(seconds):
            if each > 0:
                self._times[rank].append(each)
            elif each < 0:
                self._parents.pop(rank, None)
                self._wanted.discard(rank)
                self._times[rank].clear()
        self._gradient /= count

    def _finish_buckets(self) -> None:
        for pairs, buffer, done in self._buckets:
            if not self.is_child:
                for parameter, part in pairs:
                    part.copy_(self._part(self._gradient, parameter))
            done.set_result(buffer)
        self._buckets = []

    def _change(self) -> None:
        """Answer children and form the next ring; the same on all ranks of the ring."""
        updates = self.ledger.updates
        wanted = set(self._rule(updates, self.usual(), tuple(sorted(self._wanted))))
        if not wanted < set(range(self._world)):
            raise InvalidInput(
                f"children {sorted(wanted)} leave no other rank in the ring of {self._world} ranks",
                hint="name some ranks of the job, and not all",
            )
        self._wanted = wanted
        taken = [rank for rank in self._seen if rank in self._parents]
        joining = [child for child in taken if child not in wanted]
        parents = {child: parent for child, parent in self._parents.items() if child not in joining}
        stays = [rank for rank in self.ring if rank not in wanted]
        for child in taken:
            if stays and child in parents and parents[child] in wanted:
                parents[child] = _least_busy(stays, parents)
        # Where all are to leave, they stay until another has come back.
        leaving = [rank for rank in self.ring if stays and rank in wanted and rank not in parents.values()]
        ring = sorted({*self.ring, *joining} - set(leaving))
        for rank in leaving:
            parents[rank] = _least_busy(stays, parents)
        self._answer_taken(joining, parents, ring)
        is_new = ring != self.ring
        self._parents, self.ring, self.children = parents, ring, sorted(parents)
        self._parent = parents.get(self.rank)
        boxes = {box.child: box for box in self._mailboxes}
        self._mailboxes = [boxes.get(each) or Mailbox(each, self._message(0)) for each in sorted(self.mine)]
        if is_new:
            self._note()
        if is_new and self.rank in ring:
            self._join(ring, updates)

    def _answer_taken(self, joining: list[int], parents: dict[int, int], ring: list[int]) -> None:
        answered = {child for child, _ in self._taken}
        self._taken = []
        for box in self._mailboxes:
            if box.child not in answered:
                continue
            answer = self._parameters(over=False)
            if box.child in joining:
                answer[1] = _JOIN
                self._tail(answer)[ring] = 1.0
                box.close(answer)
                self._give_state(box.child, parents)
            elif parents[box.child] != self.rank:
                self._tail(answer)[-1] = parents[box.child]
                box.close(answer)
            else:
                box.answer(answer)

    def _receive_answer(self) -> None:
        answer = self._message(0)
        dist.recv(answer, src=self._parent)
        self.ledger.updates, state = int(answer[0]), int(answer[1])
        self._load(answer)
        self.over = state == _OVER
        if state != _JOIN:
            self._parent = int(self._tail(answer)[-1])
            return
        self.ring = torch.nonzero(self._tail(answer)[: self._world]).flatten().tolist()
        self.children = [rank for rank in range(self._world) if rank not in self.ring]
        self._take_state()
        self._parent = None
        self._join(self.ring, self.ledger.updates)
        self._note()

    def _give_state(self, child: int, parents: dict[int, int]) -> None:
        """Send a rank that comes back what is not in the parameters."""
        buffers = dict(self._model.named_buffers())
        state = (self._optimizer.state_dict(), buffers, parents, self._wanted, self._times)
        with suppress(RuntimeError):
            dist.send_object_list([state], dst=child)

    def _take_state(self) -> None:
        state: list[Any] = [None]
        dist.recv_object_list(state, src=self._parent)
        optimizer, buffers, self._parents, self._wanted, self._times = state[0]
        self._optimizer.load_state_dict(optimizer)
        for name, values in self._model.named_buffers():
            values.copy_(buffers[name])

    def _note(self) -> None:
        self.changes.append(RingChange(self.ledger.updates, tuple(self.ring), tuple(self.children)))

    def _group_all(self) -> None:
        # DDP communicates in a group of its own, so that it waits for no other rank.
        self.group = [dist.new_group([rank]) for rank in range(self._world)][self.rank]
        self._join(self.ring, 0)

    def _join(self, ring: list[int], updates: int) -> None:
        """Form a ring with its other ranks alone. `dist.new_group` needs the same calls on all ranks."""
        store = dist.PrefixStore(f"{self._name}/{updates}", dist.group.WORLD.get_group_store())
        self._ring_group = dist.ProcessGroupGloo(store, ring.index(self.rank), len(ring), self._timeout)

    def _message(self, updates: int) -> Tensor:
        """Header, parameters or gradient, and the tail: a number of each rank, and one more."""
        message = self.parameters[0].new_zeros(HEADER + self._size + self._world + 1, requires_grad=False)
        message[0] = updates
        return message

    def _parameters(self, *, over: bool) -> Tensor:
        message = super()._parameters(over=over)
        self._tail(message)[-1] = self.rank
        return message

    def _tail(self, message: Tensor) -> Tensor:
        return message[HEADER + self._size :]


def _least_busy(ranks: list[int], parents: dict[int, int]) -> int:
    """The rank with the fewest children, the first of equal ones."""
    taken = list(parents.values())
    return min(ranks, key=lambda rank: (taken.count(rank), rank))
