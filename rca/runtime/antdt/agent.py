"""The agent in each rank of a training job: applies decisions, scales gradients, and reports times.

::

    waited = lambda: sampler.waited_seconds
    first = Decision.of(equal(n_ranks, 256))
    agent = Agent(store, rank, first, controller=controller if rank == 0 else None, waited=waited)
    agent.watch(model)                       # a model in DistributedDataParallel
    while agent.begin():
        for size, is_last in agent.passes():
            x, y = data(sampler.take(size))
            with nullcontext() if is_last else model.no_sync():
                (loss(model(x), y) * agent.loss_scale(len(x))).backward()
        optimizer.step()
        sampler.confirm()
        agent.end()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from rca.errors import InvalidInput
from rca.runtime.antdt.agreement import Agreement, KeyValueStore, Times
from rca.runtime.antdt.controller import ADJUST_BATCH_SIZES, ControlAction
from rca.runtime.antdt.decision import Decision, loss_scale
from rca.runtime.antdt.monitor import Monitor, MonitorReading

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel


class Controller(Protocol):
    """`NonDedicated` or `Dedicated`."""

    def act(self, reading: MonitorReading, next_step: int) -> tuple[ControlAction, ...]:
        """Decide at a moment."""


class Agent:
    """The agent of one rank.

    Parameters
    ----------
    store : KeyValueStore
        Of the job, such as `torch.distributed.TCPStore`.
    first : Decision
        Sizes at the start, the same in all ranks.
    controller : Controller, optional
        In rank 0 only. Without one the sizes stay.
    monitor : Monitor, optional
        In rank 0 only; a new one if not given.
    every : int
        Steps between two reports of times, and between two decisions. Until then they follow each step, so
        that a job does not begin with many slow steps.
    prefix : str
        Begins all keys in the store. A restarted job with the same store needs another one.
    on_action : callable, optional
        Called in rank 0 with each action, for example to restart a node.
    waited : callable, optional
        Seconds that this rank has waited for samples so far, as `ShardSampler.waited_seconds`. They are not
        its own work.
    clock : callable
        Gives seconds.

    Attributes
    ----------
    step : int
        The step that is done now.
    decision : Decision
        The sizes of this step.
    """

    def __init__(
        self,
        store: KeyValueStore,
        rank: int,
        first: Decision,
        *,
        controller: Controller | None = None,
        monitor: Monitor | None = None,
        every: int = 5,
        prefix: str = "antdt",
        on_action: Callable[[ControlAction], None] | None = None,
        waited: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not 0 <= rank < first.n_workers:
            raise InvalidInput(f"there is no rank {rank}: the decision is for {first.n_workers} workers")
        if controller is not None and rank != 0:
            raise InvalidInput("only rank 0 has a controller", hint="give None in the other ranks")
        self.rank, self.step, self.decision = rank, -1, first
        self._agreement = Agreement(store, first, prefix)
        self._times = Times(store, first.n_workers, prefix)
        self._controller, self._monitor = controller, monitor or Monitor(first.n_workers)
        self._every, self._on_action, self._clock = every, on_action, clock
        self._waited = waited
        self._began, self._ready, self._samples, self._waited_before = 0.0, 0.0, 0, 0.0
        self._batches: list[tuple[float, int, float]] = []

    def watch(
        self, model: DistributedDataParallel, hook: Callable[[Any, Any], Any] | None = None, state: Any = None
    ) -> None:
        """Note when the gradients of this rank are complete, before the wait for other ranks.

        Parameters
        ----------
        hook, state : optional
            Another communication hook to use for the all-reduce, and its state. It has to average.
        """
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def noted(_: Any, bucket: Any) -> Any:
            if bucket.is_last():
                self.gradients_are_ready()
            return (hook or allreduce_hook)(state, bucket)

        # The type of `bucket` would be needed at run time, and torch is not imported here.
        noted.__annotations__.clear()
        model.register_comm_hook(None, noted)

    def begin(self) -> bool:
        """Begin the next step; False if the job has ended."""
        if self._agreement.is_over(self.step + 1):
            return False
        self.step += 1
        self.decision = self._agreement.at(self.step)
        if self._controller is not None and self.step and self._is_due(self.step):
            self._decide()
        self._began = self._ready = self._clock()
        self._samples, self._waited_before = 0, self._waited()
        return True

    def passes(self) -> Iterator[tuple[int, bool]]:
        """Size of each forward and backward pass of this step, and whether it is the last one."""
        steps = self.decision.steps[self.rank]
        for number in range(steps):
            yield self.decision.sizes[self.rank], number == steps - 1

    def loss_scale(self, samples: int) -> float:
        """Factor for the mean loss of a pass, so that the update is the mean over the samples of all ranks.

        A rank without samples at the end of the data does a pass over any sample and gives 0 here.
        """
        self._samples += samples
        return loss_scale(samples, self.decision.n_workers, self.decision.total)

    def gradients_are_ready(self) -> None:
        """Note the end of this rank's own work; `watch` calls it."""
        self._ready = self._clock()

    def end(self) -> None:
        """End the step, after the optimizer: report the time, and read decisions."""
        waited = self._waited() - self._waited_before
        self._batches.append((self._ready - self._began - waited, self._samples, waited))
        if self._is_due(self.step + 1):
            self._times.send(self.rank, self._batches)
            self._batches = []
        self._agreement.read()

    def stop(self) -> None:
        """End the job after this step; for rank 0, between `begin` and its last backward pass."""
        self._agreement.stop(self.step + 1)

    def _is_due(self, step: int) -> bool:
        return step < self._every or step % self._every == 0

    def _decide(self) -> None:
        at = self._clock()
        for rank, seconds, samples, waited in self._times.received():
            self._monitor.record(rank, at, seconds, samples, waited)
        assert self._controller is not None  # noqa: S101  (the caller has checked it)
        for action in self._controller.act(self._monitor.reading(at), self.step + 1):
            if action.name == ADJUST_BATCH_SIZES and action.decision is not None:
                self._agreement.publish(action.decision)
            if self._on_action is not None:
                self._on_action(action)
