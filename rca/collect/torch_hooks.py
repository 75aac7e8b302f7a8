"""Phases of PyTorch training without a line per phase: hooks on the model, optimizers and collectives.

Hooks only read clocks. No gradient, stream or collective is changed, and none is added.

- A model's forward hooks time the forward pass.
- A hook on the model's outputs runs when the backward pass reaches them. It queues a callback for the end of
  the rank's own backward pass. Data parallelism queues its wait for the gradients later, so a second callback
  runs after that wait. The time between the two is communication.
- Functions of torch.distributed and waits for their results are timed where Python calls them. So are waits
  of the compute stream that sharded data parallelism enqueues on a GPU.
- Global hooks time ``step`` of all optimizers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from itertools import islice
from types import ModuleType
from typing import Any, Final

from rca.collect.faults import Faults
from rca.collect.timers import PHASE_NUMBERS, StepTimer

FORWARD: Final = PHASE_NUMBERS["forward"]
BACKWARD: Final = PHASE_NUMBERS["backward"]
COMMUNICATION: Final = PHASE_NUMBERS["communication"]
OPTIMIZER: Final = PHASE_NUMBERS["optimizer"]
#: Functions of torch.distributed that wait for other ranks, or may.
COLLECTIVES: Final = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
)
#: Tensors of an output that get a hook, and how deep they are looked for.
MAX_TENSORS, MAX_DEPTH = 8, 3


class TorchHooks:
    """Hooks of one collection."""

    def __init__(self, torch: ModuleType, timer: StepTimer, faults: Faults) -> None:
        self._torch: Any = torch
        self._timer, self._faults = timer, faults
        self._in_backward = False
        self._undo: list[Callable[[], None]] = []
        self._compiling: Callable[[], bool] = torch.compiler.is_compiling

    def install(self) -> None:
        """Hook optimizers, collectives and streams."""
        optimizer: Any = sys.modules["torch.optim.optimizer"]  # torch.optim hides the name
        self._undo.append(optimizer.register_optimizer_step_pre_hook(self._optimizer_begins).remove)
        self._undo.append(optimizer.register_optimizer_step_post_hook(self._optimizer_ends).remove)
        # A lost peer is an error of the backward pass, where data parallelism reduces gradients.
        self._replace(self._torch.autograd, "backward", self._reported)
        distributed = self._torch.distributed
        if distributed.is_available():
            for name in COLLECTIVES:
                for module in (distributed, distributed.distributed_c10d):
                    self._replace(module, name, self._timed)
            self._replace(distributed.distributed_c10d.Work, "wait", self._timed)
        if self._torch.cuda.is_available():
            for name in ("wait_event", "wait_stream"):
                self._replace(self._torch.cuda.Stream, name, self._timed_stream_wait)

    def watch(self, model: Any) -> None:
        """Hook a model."""
        self._undo.append(model.register_forward_pre_hook(self._forward_begins, prepend=True).remove)
        # First of all hooks: its callback has to come before those of sharded data parallelism.
        self._undo.append(model.register_forward_hook(self._forward_ends, prepend=True).remove)

    def remove(self) -> None:
        """Take everything back."""
        while self._undo:
            self._undo.pop()()

    def expect_backward(self, output: Any) -> None:
        """Time the backward pass that begins with tensors of `output`."""
        for tensor in _tensors(output, self._torch.Tensor):
            if tensor.requires_grad:
                tensor.register_hook(self._backward_begins)

    def _forward_begins(self, *_: Any) -> None:
        if not self._compiling():
            self._in_backward = False
            self._enter(FORWARD)

    def _forward_ends(self, _module: Any, _inputs: Any, output: Any) -> None:
        if self._compiling() or not self._timer.in_step:
            return
        self._leave(FORWARD)
        try:
            self.expect_backward(output)
        except Exception as error:
            self._faults.add("hooking an output", error)

    def _backward_begins(self, _gradient: Any) -> None:
        if self._in_backward or self._compiling() or not self._timer.in_step:
            return
        try:
            queue = self._torch.autograd.Variable._execution_engine.queue_callback
            queue(self._own_backward_ends)
        except Exception as error:
            self._faults.add("hooking the backward pass", error)
            return
        self._in_backward = True
        self._enter(BACKWARD)

    def _own_backward_ends(self) -> None:
        self._enter(COMMUNICATION)
        try:
            self._torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)
        except Exception as error:
            self._faults.add("hooking the backward pass", error)
            self._backward_ends()

    def _backward_ends(self) -> None:
        self._leave(COMMUNICATION)
        self._leave(BACKWARD)
        self._in_backward = False

    def _optimizer_begins(self, *_: Any) -> None:
        if not self._compiling():
            self._enter(OPTIMIZER)

    def _optimizer_ends(self, *_: Any) -> None:
        if not self._compiling():
            self._leave(OPTIMIZER)

    def _enter(self, phase: int) -> None:
        """Go over to a phase of a step that has begun; evaluation between steps is not timed."""
        try:
            if self._timer.in_step:
                self._timer.enter(phase, any_thread=self._in_backward)
        except Exception as error:
            self._faults.lost_step(self._timer, error)

    def _leave(self, phase: int) -> None:
        try:
            if self._timer.in_step:
                self._timer.leave(phase, any_thread=self._in_backward)
        except Exception as error:
            self._faults.lost_step(self._timer, error)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiling, timer = self._compiling, self._timer

        @wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            if compiling() or not timer.in_step:
                return function(*arguments, **options)
            self._enter(COMMUNICATION)
            try:
                return function(*arguments, **options)
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                self._leave(COMMUNICATION)

        return timed

    def _reported(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose errors are reported, and which is not timed."""

        @wraps(function)
        def reported(*arguments: Any, **options: Any) -> Any:
            try:
                return function(*arguments, **options)
            except BaseException as error:
                if self._timer.in_step:
                    self._fail(error)
                raise

        return reported

    def _fail(self, error: BaseException) -> None:
        try:
            self._timer.fail(error)
        except Exception as failed:
            self._faults.lost_step(self._timer, failed)

    def _timed_stream_wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        timed, compiling, timer = self._timed(function), self._compiling, self._timer

        @wraps(function)
        def wait(stream: Any, *arguments: Any, **options: Any) -> Any:
            if compiling() or timer.stream is None or stream != timer.stream or not _called_by_distributed():
                return function(stream, *arguments, **options)
            return timed(stream, *arguments, **options)

        return wait

    def _replace(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        """Put a timed function in the place of an attribute, until `remove`."""
        original = getattr(owner, name, None)
        if original is None:
            return
        timed = around(original)
        setattr(owner, name, timed)

        def undo() -> None:
            # Another library may have wrapped it since.
            if getattr(owner, name, None) is timed:
                setattr(owner, name, original)

        self._undo.append(undo)


def _called_by_distributed() -> bool:
    """Whether the caller's caller is a part of torch.distributed."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("torch.distributed")


def _tensors(output: Any, kind: type) -> Iterator[Any]:
    """The first tensors in a tensor, sequence, mapping or object with attributes."""
    return islice(_walk(output, kind, 0), MAX_TENSORS)


def _walk(output: Any, kind: type, depth: int) -> Iterator[Any]:
    if isinstance(output, kind):
        yield output
        return
    if depth == MAX_DEPTH or isinstance(output, str | bytes):
        return
    held: Iterable[Any] = ()
    if isinstance(output, Mapping):
        held = output.values()
    elif isinstance(output, list | tuple):
        held = output
    elif hasattr(output, "__dict__"):
        held = vars(output).values()
    for each in held:
        yield from _walk(each, kind, depth + 1)
