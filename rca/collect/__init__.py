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

import atexit
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from rca.collect.device_marks import marks_of_gpu
from rca.collect.identity import identify
from rca.collect.recorder import Faults, Recorder, Settings
from rca.collect.timers import PHASE_NUMBERS, StepTimer

if TYPE_CHECKING:
    from rca.collect.callbacks import Session
    from rca.collect.torch_hooks import TorchHooks

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

_P = ParamSpec("_P")
_T = TypeVar("_T")
_OFF: Final = {"0", "false", "no", "off"}

_faults = Faults()
_recorder: Recorder | None = None
#: Of the recorder, to save training code a lookup per phase.
_timer: StepTimer | None = None
_hooks: TorchHooks | None = None
_hooked = False


def _guarded(default: _T) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A function that returns `default` instead of raising."""

    def around(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(function)
        def safe(*arguments: _P.args, **options: _P.kwargs) -> _T:
            try:
                return function(*arguments, **options)
            except Exception as error:  # Training must not notice.
                _faults.add(f"collect.{function.__name__}", error)
                return default

        return safe

    return around


@_guarded(default=False)
def start(
    folder: str | os.PathLike[str] | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    node: str | None = None,
    job_id: str | None = None,
    parallelism: Mapping[str, int] | None = None,
    max_bytes: int = 16 * 1024**2,
) -> bool:
    """Begin to collect in this process.

    Parameters
    ----------
    folder : path, optional
        For the files of all ranks of one run, ``RCA_COLLECT_DIR`` by default. Without either, nothing is
        collected.
    rank, world_size : int, optional
        From torch.distributed, or else from the variables of torchrun, SLURM, Open MPI or MPICH.
    node : str, optional
        Name of the machine; its host name by default.
    job_id : str, optional
        The launcher's by default.
    parallelism : mapping of str to int, optional
        Sizes `data`, `tensor`, `pipeline`, `context`, `expert`, `virtual_pipeline`.
    max_bytes : int
        Limit on the files of this rank; the oldest are deleted.

    Returns
    -------
    bool
        Whether this process collects now. ``RCA_COLLECT=0`` switches the collector off.
    """
    global _recorder, _timer, _hooked
    if os.environ.get("RCA_COLLECT", "").strip().lower() in _OFF:
        return False
    if _recorder is not None:
        _faults.warn("twice", "collect.start was called again without collect.stop; the first call counts")
        return True
    target = folder or os.environ.get("RCA_COLLECT_DIR")
    if not target:
        _faults.warn("folder", "nothing is collected: set RCA_COLLECT_DIR, or give collect.start a folder")
        return False
    header: dict[str, Any] = {"framework": "pytorch"} if "torch" in sys.modules else {}
    if parallelism is not None:
        header["parallelism"] = {name: int(size) for name, size in parallelism.items()}
    who = partial(identify, rank, world_size, node, job_id)
    settings = Settings(Path(target), who, header, max(1 << 16, int(max_bytes)))
    timer = StepTimer()
    if os.environ.get("RCA_COLLECT_GPU", "").strip().lower() not in _OFF:
        timer.find_marks = partial(marks_of_gpu, timer.write)
    recorder = Recorder(settings, timer, _faults)
    recorder.start()
    _recorder, _timer = recorder, timer
    if not _hooked:
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)
        _hooked = True
    return True


@_guarded(default=None)
def stop() -> None:
    """End the collection, because training is over; waits two seconds at most for the disk."""
    if _timer is not None:
        _timer.cancel()
    _end("0", "the training code stopped the collector")


def step(number: int | None = None) -> _Step:
    """Time a step: ``with collect.step():`` around all of its phases.

    Parameters
    ----------
    number : int, optional
        The training step, for jobs that go on from a checkpoint; counted from 0 by default.
    """
    return _Step(number)


def phase(name: str) -> _Phase:
    """Time a phase of a step: ``with collect.phase("forward"):``.

    Time in an inner phase does not count for the outer one. Phases between two steps belong to the next.

    Parameters
    ----------
    name : str
        `data_loading`, `host_to_device`, `forward`, `backward`, `communication`, `communication_wait`,
        `communication_transfer`, `optimizer`, `checkpoint` or `gc`. Another name is logged once and not
        timed.
    """
    return _PHASES.get(name) or _unknown(name)


def batches(loader: Iterable[_T]) -> Iterator[_T]:
    """Iterate over `loader`, and time the wait for each batch as data loading."""
    iterator = iter(loader)
    while True:
        with _PHASES["data_loading"]:
            try:
                batch = next(iterator)
            except StopIteration:
                return
        yield batch


def steps(loader: Iterable[_T]) -> Iterator[_T]:
    """Iterate over `loader`; each round is a step that begins with the wait for its batch."""
    iterator = iter(loader)
    while True:
        with _Step(None) as current:
            with _PHASES["data_loading"]:
                try:
                    batch = next(iterator)
                except StopIteration:
                    current.cancel()
                    return
            # `break` and errors leave the step open.
            yield batch


def watch(model: _T) -> _T:
    """Time forward, backward, communication and optimizer of a PyTorch model; returns the model.

    Call it after the model was wrapped (``DistributedDataParallel``, ``fully_shard``, ``torch.compile``).
    Hooks read clocks and change nothing. Collectives that C++ calls, or that were imported by name before,
    are seen in the data parallel backward pass only.
    """
    _watch(model)
    return model


@_guarded(default=None)
def _watch(model: Any) -> None:
    global _hooks
    torch = sys.modules.get("torch")
    if _timer is None or torch is None:
        return
    if _hooks is None:
        from rca.collect.torch_hooks import TorchHooks

        _hooks = TorchHooks(torch, _timer, _faults)
        _hooks.install()
    _hooks.watch(model)


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
        start=lambda: _recorder is not None or start(),
        stop=stop,
        watch=watch,
        expect_backward=_expect_backward,
        timer=lambda: _timer,
        faults=lambda: _faults,
    )


@_guarded(default=None)
def _expect_backward(loss: Any) -> None:
    if _hooks is not None:
        _hooks.expect_backward(loss)


@_guarded(default=None)
def load(
    *,
    samples: float | None = None,
    tokens: float | None = None,
    sum_squared_sequence_length: float | None = None,
) -> None:
    """Add to the work of the step in progress, so that a larger batch does not look like a fault."""
    if _timer is not None:
        for number, amount in enumerate((samples, tokens, sum_squared_sequence_length)):
            if amount is not None:
                _timer.load(number, float(amount))


@_guarded(default=None)
def event(kind: str, message: str | None = None, code: str | None = None) -> None:
    """Record an event of this rank now, such as `restart` or `log`."""
    if _recorder is not None:
        _recorder.event(str(kind), code, message)


class _Step:
    """Context of one step."""

    __slots__ = ("_number",)

    def __init__(self, number: int | None) -> None:
        self._number = number

    def __enter__(self) -> _Step:
        timer = _timer
        if timer is not None:
            try:
                timer.begin(self._number)
            except Exception as error:
                _faults.lost_step(timer, error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer = _timer
        # After an error the step stays open: it was begun and never finished.
        if timer is not None and kind is None:
            try:
                timer.end()
            except Exception as failed:
                _faults.lost_step(timer, failed)

    def cancel(self) -> None:
        """Forget the step."""
        if _timer is not None:
            _timer.cancel()


class _Phase:
    """Context of a phase; one object serves all steps."""

    __slots__ = ("_number",)

    def __init__(self, number: int | None) -> None:
        self._number = number

    def __enter__(self) -> _Phase:
        timer = _timer
        if timer is not None and self._number is not None:
            try:
                timer.enter(self._number)
            except Exception as error:
                _faults.lost_step(timer, error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer = _timer
        if timer is not None and self._number is not None:
            try:
                timer.leave(self._number)
            except Exception as failed:
                _faults.lost_step(timer, failed)


_PHASES: Final = {name: _Phase(number) for name, number in PHASE_NUMBERS.items()}
_UNKNOWN: Final = _Phase(None)


def _unknown(name: str) -> _Phase:
    _faults.warn(f"phase {name}", f"collect.phase({name!r}) is not timed; phases are {', '.join(_PHASES)}")
    return _UNKNOWN


def _end(code: str | None, message: str | None) -> None:
    global _recorder, _timer
    recorder, _recorder, _timer = _recorder, None, None
    _unhook()
    if recorder is not None:
        try:
            recorder.timer.settle()
        except Exception as error:
            _faults.lost_step(recorder.timer, error)
        if code is not None:
            recorder.event("process_exit", code, message)
        recorder.end()


@_guarded(default=None)
def _at_exit() -> None:
    """At the interpreter's end without `stop`: with an error, if one ended the program."""
    error = getattr(sys, "last_value", None)
    failed = isinstance(error, BaseException)
    _end("1" if failed else None, f"{type(error).__name__}: {error}"[:200] if failed else None)


def _after_fork() -> None:
    """A child of the training process, such as a data loader, does not collect."""
    global _recorder, _timer
    recorder, _recorder, _timer = _recorder, None, None
    _unhook()
    if recorder is not None:
        recorder.forget()


def _unhook() -> None:
    global _hooks
    hooks, _hooks = _hooks, None
    if hooks is not None:
        hooks.remove()
