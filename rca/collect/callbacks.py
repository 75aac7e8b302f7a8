"""Callbacks for the trainers of Lightning and Transformers, which own the training loop.

A trainer fetches its batches between two steps. That time counts as data loading of the next step, without
evaluation. Checkpoints have a phase of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Concatenate, ParamSpec

from rca.collect.faults import Faults
from rca.collect.timers import PHASE_NUMBERS, StepTimer

_P = ParamSpec("_P")
_LOADING = PHASE_NUMBERS["data_loading"]
_FORWARD = PHASE_NUMBERS["forward"]
_CHECKPOINT = PHASE_NUMBERS["checkpoint"]


@dataclass(frozen=True)
class Session:
    """Functions of the collector that callbacks use.

    Attributes
    ----------
    stop : callable
        Takes the error that ends the training, if there is one.
    watch : callable
        Takes the model.
    expect_backward : callable
        Takes the loss.
    timer : callable
        The timer of the collection; None without one.
    """

    start: Callable[[], bool]
    stop: Callable[..., None]
    watch: Callable[[Any], object]
    expect_backward: Callable[[Any], None]
    timer: Callable[[], StepTimer | None]
    faults: Callable[[], Faults]


def _quiet(
    method: Callable[Concatenate[Any, StepTimer, _P], None],
) -> Callable[Concatenate[Any, _P], None]:
    """A method of a callback that gets the timer first, and raises nothing into the trainer."""

    def safe(self: Any, /, *arguments: _P.args, **options: _P.kwargs) -> None:
        timer = self.session.timer()
        if timer is not None:
            try:
                method(self, timer, *arguments, **options)
            except Exception as error:
                self.session.faults().lost_step(timer, error)

    return safe


class LightningTimes:
    """Methods of the Lightning callback, by the names of `lightning.pytorch.Callback`."""

    session: Session
    _watched: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.session.start()
        # The trainer's model is the wrapped one.
        model = getattr(trainer, "model", None) or pl_module
        if model is not self._watched:
            self._watched = model
            self.session.watch(model)
        self._wait_for_batch()

    @_quiet
    def on_train_batch_start(self, timer: StepTimer, *_: Any, **__: Any) -> None:
        # The batches of one optimizer step are one step.
        if not timer.in_step:
            timer.begin()
        timer.leave(_CHECKPOINT)
        timer.leave(_LOADING)
        timer.enter(_FORWARD)

    @_quiet
    def on_before_backward(self, timer: StepTimer, _trainer: Any, _module: Any, loss: Any) -> None:
        timer.leave(_FORWARD)
        self.session.expect_backward(loss)

    @_quiet
    def on_train_batch_end(
        self, timer: StepTimer, trainer: Any, _module: Any, _outputs: Any, _batch: Any, number: int, *_: Any
    ) -> None:
        timer.leave(_FORWARD)
        every = int(getattr(trainer, "accumulate_grad_batches", 1) or 1)
        last = bool(getattr(trainer, "is_last_batch", False))
        if (number + 1) % every == 0 or last:
            timer.end()
        timer.enter(_LOADING)

    @_quiet
    def on_save_checkpoint(self, timer: StepTimer, *_: Any) -> None:
        """Called before a checkpoint is written; it ends with the next batch at the latest."""
        timer.leave(_LOADING)
        timer.enter(_CHECKPOINT)

    @_quiet
    def on_validation_start(self, timer: StepTimer, *_: Any) -> None:
        if not timer.in_step:
            timer.cancel()

    def on_validation_end(self, *_: Any) -> None:
        self._wait_for_batch()

    def on_train_epoch_end(self, *_: Any) -> None:
        self._wait_for_batch()

    def on_train_end(self, *_: Any) -> None:
        self.session.stop()

    def on_exception(self, _trainer: Any, _module: Any, exception: BaseException) -> None:
        """Called in place of `on_train_end`; training code may catch the exception afterwards."""
        self.session.stop(exception)

    @_quiet
    def _wait_for_batch(self, timer: StepTimer) -> None:
        if not timer.in_step:
            timer.cancel()
            timer.enter(_LOADING)


class TransformersTimes:
    """Methods of the Transformers callback, by the names of `transformers.TrainerCallback`."""

    session: Session
    _watched: Any = None

    def on_train_begin(self, *_: Any, model: Any = None, **__: Any) -> None:
        self.session.start()
        if model is not None and model is not self._watched:
            self._watched = model
            self.session.watch(model)

    @_quiet
    def on_epoch_begin(self, timer: StepTimer, *_: Any, **__: Any) -> None:
        timer.cancel()
        timer.enter(_LOADING)

    @_quiet
    def on_step_begin(self, timer: StepTimer, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        timer.leave(_LOADING)
        timer.begin(int(state.global_step))

    @_quiet
    def on_step_end(self, timer: StepTimer, *_: Any, **__: Any) -> None:
        timer.end()
        timer.enter(_LOADING)

    @_quiet
    def on_evaluate(self, timer: StepTimer, *_: Any, **__: Any) -> None:
        timer.cancel()
        timer.enter(_LOADING)

    @_quiet
    def on_save(self, timer: StepTimer, *_: Any, **__: Any) -> None:
        """Called after a checkpoint was written: the time so far was no data loading."""
        timer.relabel(_CHECKPOINT)
        timer.enter(_LOADING)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.session.stop()


def lightning(session: Session) -> Any:
    """A Lightning callback; without Lightning, an object with its methods."""
    return _made(LightningTimes, ("lightning.pytorch", "pytorch_lightning"), "Callback", session)


def transformers(session: Session) -> Any:
    """A Transformers callback; without Transformers, an object with its methods."""
    return _made(TransformersTimes, ("transformers",), "TrainerCallback", session)


def _made(times: type, modules: tuple[str, ...], base: str, session: Session) -> Any:
    bases: tuple[type, ...] = (times,)
    for name in modules:
        try:
            bases = (times, getattr(import_module(name), base))
        except ImportError:
            continue
        break
    made = type(f"Collect{base}", bases, {})()
    made.session = session
    return made
