"""Collector for training code: step timers and kernel counters of each rank, in files for `rca diagnose`.

It needs numpy only, and never raises into training: errors are counted, and the first is logged.

>>> from rca import collect
>>> collect.start("/tmp/collected", rank=0, world_size=1)  # doctest: +SKIP
True
>>> for batch in collect.steps([1, 2, 3]):
...     with collect.phase("forward"):
...         loss = batch * 2.0
>>> collect.stop()
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from rca.collect.collection import CURRENT, guarded, start, stop
from rca.collect.contexts import batches, phase, step, steps

if TYPE_CHECKING:
    from rca.collect.callbacks import Session

__all__ = [
    "batches",
    "event",
    "lightning_callback",
    "load",
    "phase",
    "start",
    "step",
    "steps",
    "stop",
    "transformers_callback",
    "watch",
]

_T = TypeVar("_T")


def watch(model: _T) -> _T:
    """Time forward, backward, communication and optimizer of a PyTorch model; returns the model.

    Call it after the model was wrapped (``DistributedDataParallel``, ``fully_shard``, ``torch.compile``).
    Hooks read clocks and change nothing. Collectives that C++ calls, or that were imported by name before,
    are seen in the data parallel backward pass only.
    """
    _watch(model)
    return model


@guarded(default=None)
def _watch(model: Any) -> None:
    torch = sys.modules.get("torch")
    if CURRENT.timer is None or torch is None:
        return
    if CURRENT.hooks is None:
        from rca.collect.torch_hooks import TorchHooks

        CURRENT.hooks = TorchHooks(torch, CURRENT.timer, CURRENT.faults)
        CURRENT.hooks.install()
    CURRENT.hooks.watch(model)


def lightning_callback() -> Any:
    """A callback for a Lightning trainer: times steps, and watches the model.

    It starts the collector if `start` was not called, and stops it after training.
    """
    from rca.collect.callbacks import lightning

    return lightning(_session())


def transformers_callback() -> Any:
    """A callback for a Transformers trainer: times steps, and watches the model.

    It starts the collector if `start` was not called, and stops it after training.
    """
    from rca.collect.callbacks import transformers

    return transformers(_session())


def _session() -> Session:
    from rca.collect.callbacks import Session

    return Session(
        start=lambda: CURRENT.recorder is not None or start(),
        stop=stop,
        watch=watch,
        expect_backward=_expect_backward,
        timer=lambda: CURRENT.timer,
        faults=lambda: CURRENT.faults,
    )


@guarded(default=None)
def _expect_backward(loss: Any) -> None:
    if CURRENT.hooks is not None:
        CURRENT.hooks.expect_backward(loss)


@guarded(default=None)
def load(
    *,
    samples: float | None = None,
    tokens: float | None = None,
    sum_squared_sequence_length: float | None = None,
) -> None:
    """Add to the work of the step in progress, so that a larger batch does not look like a fault."""
    if CURRENT.timer is not None:
        for number, amount in enumerate((samples, tokens, sum_squared_sequence_length)):
            if amount is not None:
                CURRENT.timer.load(number, float(amount))


@guarded(default=None)
def event(kind: str, message: str | None = None, code: str | None = None) -> None:
    """Record an event of this rank now, such as `restart` or `log`."""
    if CURRENT.recorder is not None:
        CURRENT.recorder.event(str(kind), code, message)
