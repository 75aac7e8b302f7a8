"""The collection in this process: begun and ended once, and forgotten by forked children.

Nothing here raises into training: errors are counted, and the first is logged.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar

from rca.collect.device_marks import marks_of_gpu
from rca.collect.exits import STOPPED, WITHIN_STEP, error_text, exit_code
from rca.collect.faults import Faults
from rca.collect.identity import identify
from rca.collect.push import PushSettings
from rca.collect.recorder import Recorder, RecorderSettings
from rca.collect.timers import StepTimer

if TYPE_CHECKING:
    from rca.collect.torch_hooks import TorchHooks

_P = ParamSpec("_P")
_T = TypeVar("_T")
_OFF: Final = {"0", "false", "no", "off"}


class RunningCollection:
    """What collects in this process; there is one of it, `CURRENT`.

    Attributes
    ----------
    recorder : Recorder or None
        None while nothing is collected.
    timer : StepTimer or None
        Of the recorder, to save training code a lookup per phase.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.timer: StepTimer | None = None
        self.hooks: TorchHooks | None = None
        self.faults = Faults()
        self._registered = False
        #: Handled where the collection began, so it does not end the training.
        self._handled: BaseException | None = None

    def begin(self, recorder: Recorder) -> None:
        """Collect with a started recorder."""
        self.recorder, self.timer = recorder, recorder.timer
        self._handled = sys.exc_info()[1]
        if not self._registered:
            atexit.register(at_exit)
            os.register_at_fork(after_in_child=self._forget)
            self._registered = True

    def in_flight(self) -> BaseException | None:
        """The exception that is raised or handled now, unless that was so when the collection began."""
        error = sys.exc_info()[1]
        if error is None and not threading.main_thread().is_alive():
            # The interpreter ends, and has printed the error that ended the program.
            return _last_error()
        return None if error is self._handled else error

    def end(self, code: str | None, message: str | None) -> None:
        """End the collection, with an event of the process's exit if there is a code."""
        recorder = self._taken()
        self._handled = None
        if recorder is not None:
            try:
                recorder.timer.settle()
            except Exception as error:
                self.faults.lost_step(recorder.timer, error)
            if code is not None:
                recorder.event("process_exit", code, message)
            recorder.end(over=code is not None)

    def _forget(self) -> None:
        """A child of the training process, such as a data loader, does not collect."""
        recorder = self._taken()
        if recorder is not None:
            recorder.forget()

    def _taken(self) -> Recorder | None:
        """The recorder, which no longer collects."""
        recorder, self.recorder, self.timer = self.recorder, None, None
        hooks, self.hooks = self.hooks, None
        if hooks is not None:
            hooks.remove()
        return recorder


CURRENT: Final = RunningCollection()


def guarded(default: _T) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A function that returns `default` instead of raising."""

    def around(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(function)
        def safe(*arguments: _P.args, **options: _P.kwargs) -> _T:
            try:
                return function(*arguments, **options)
            except Exception as error:  # Training must not notice.
                CURRENT.faults.add(f"collect.{function.__name__}", error)
                return default

        return safe

    return around


@guarded(default=False)
def start(
    folder: str | os.PathLike[str] | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    node: str | None = None,
    job_id: str | None = None,
    parallelism: Mapping[str, int] | None = None,
    max_bytes: int = 16 * 1024**2,
    service: str | None = None,
) -> bool:
    """Begin to collect in this process.

    Parameters
    ----------
    folder : path, optional
        For the files of all ranks of one run, ``RCA_COLLECT_DIR`` by default.
    rank, world_size : int, optional
        From torch.distributed, or else from the variables of torchrun, SLURM, Open MPI or MPICH.
    node : str, optional
        Name of the machine; its host name by default.
    job_id : str, optional
        The launcher's by default.
    parallelism : mapping of str to int, optional
        Sizes `data`, `tensor`, `pipeline`, `context`, `expert`, `virtual_pipeline`.
    max_bytes : int
        Limit on the files of this rank; the oldest are deleted. The spool of `service` has the same one.
    service : str, optional
        Address of a service that gets everything while training runs, ``RCA_COLLECT_SERVICE`` by default.
        ``RCA_API_KEY`` is its key. Without a folder and a service, nothing is collected.

    Returns
    -------
    bool
        Whether this process collects now. ``RCA_COLLECT=0`` switches the collector off.
    """
    if os.environ.get("RCA_COLLECT", "").strip().lower() in _OFF:
        return False
    faults = CURRENT.faults
    if CURRENT.recorder is not None:
        faults.warn("twice", "collect.start was called again without collect.stop; the first call counts")
        return True
    target = folder or os.environ.get("RCA_COLLECT_DIR")
    push = _push_settings(service or os.environ.get("RCA_COLLECT_SERVICE"), target, max_bytes)
    if not target and push is None:
        faults.warn(
            "folder",
            "nothing is collected: set RCA_COLLECT_DIR or RCA_COLLECT_SERVICE, or give a folder to start",
        )
        return False
    header: dict[str, Any] = {"framework": "pytorch"} if "torch" in sys.modules else {}
    if parallelism is not None:
        header["parallelism"] = {name: int(size) for name, size in parallelism.items()}
    who = partial(identify, rank, world_size, node, job_id)
    files = Path(target) if target else None
    settings = RecorderSettings(files, who, header, max(1 << 16, int(max_bytes)), push)
    timer = StepTimer()
    if os.environ.get("RCA_COLLECT_GPU", "").strip().lower() not in _OFF:
        timer.find_marks = partial(marks_of_gpu, timer.write)
    recorder = Recorder(settings, timer, faults)
    recorder.start()
    CURRENT.begin(recorder)
    return True


def _push_settings(
    service: str | None, folder: str | os.PathLike[str] | None, max_bytes: int
) -> PushSettings | None:
    """Where to send; None without a service, and with an address that cannot be used."""
    if not service:
        return None
    spool = Path(folder) / "spool" if folder else None
    try:
        return PushSettings.checked(
            service, os.environ.get("RCA_API_KEY"), spool, max(1 << 16, int(max_bytes))
        )
    except ValueError as error:
        CURRENT.faults.warn("service", f"nothing is sent: {error}")
        return None


@guarded(default=None)
def stop(error: BaseException | Literal["in flight"] | None = "in flight") -> None:
    """End the collection, because training is over; waits two seconds at most for the disk.

    Parameters
    ----------
    error : BaseException, optional
        What ends the training; by default the exception that is raised or handled now, as in a ``finally``.
        With None the training ended well, for example by an exception that stops it early.
    """
    if CURRENT.recorder is None:
        return
    error = CURRENT.in_flight() if error == "in flight" else error
    timer, code = CURRENT.recorder.timer, exit_code(error)
    within_step = timer.in_step
    if code == "0" and not timer.failed:
        timer.cancel()
    if error is None or code == "0":
        CURRENT.end(code, STOPPED + WITHIN_STEP * within_step)
    else:
        CURRENT.end(code, error_text(error))


@guarded(default=None)
def at_exit() -> None:
    """At the interpreter's end without `stop`: with an error, if one ended the program."""
    error = _last_error()
    if error is not None:
        CURRENT.end(exit_code(error), error_text(error))
    else:
        CURRENT.end(None, None)


def _last_error() -> BaseException | None:
    """The error that ended the program, once the interpreter has printed it."""
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None
