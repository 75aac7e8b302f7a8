"""One capture: run the job, inject the faults, sample, and write the labelled window."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import numpy as np

from rca.errors import InvalidInput, RcaError
from rca.lab.testbed.bed import Bed, assembled
from rca.lab.testbed.gpus import Gpu, require_gpus
from rca.lab.testbed.injection import Hiccup, Injector, NeighbourLoad, SlowWarmUp, injector
from rca.lab.testbed.labels import label_of
from rca.lab.testbed.probe import Capabilities, probe
from rca.lab.testbed.process import Exit, send
from rca.lab.testbed.ranks.host import Average
from rca.lab.testbed.record import Acted, CaptureRecord
from rca.lab.testbed.sampling.sampler import SAMPLE_PERIOD_SECONDS, CpuAccount, Sampler
from rca.lab.testbed.scenario import CaptureScenario, TestbedFault
from rca.lab.testbed.sweep import exclusive, sweep
from rca.lab.testbed.window import window_of
from rca.sources.labels import WindowLabel, write_labelled
from rca.window.window import Window

_POLL_SECONDS = 0.003
_START_SECONDS = 90.0
_STALL_SECONDS = 3.0
# Longer than any step with a fault, shorter than gloo's timeout.
_SLOW_STEP_SECONDS = 25.0
_BENIGN_ACTIONS: dict[str, type[Hiccup] | type[NeighbourLoad] | type[SlowWarmUp]] = {
    "hiccup": Hiccup,
    "neighbour_load": NeighbourLoad,
    "slow_warm_up": SlowWarmUp,
}

OnProgress = Callable[[str, int, int], None]
#: Called again and again with the testbed and the step that the slowest rank is in.
AtStep = Callable[[Bed, int], None]


class CaptureFailed(RcaError):
    """The job did not run as the scenario says."""

    code = "testbed-capture"


@dataclass(frozen=True)
class Captured:
    """A finished capture."""

    window: Window
    label: WindowLabel


def capture(
    scenario: CaptureScenario,
    *,
    on_progress: OnProgress = lambda phase, done, total: None,
    at_step: AtStep = lambda bed, step: None,
    average: Average | None = None,
    gpus: Sequence[Gpu] | None = None,
) -> Captured:
    """Run a scenario on this machine.

    Parameters
    ----------
    on_progress : callable
        Called with ``(phase, steps done, steps in total)``.
    at_step : callable
        Changes the running job.
    average : callable, optional
        Averages gradients in another way (`rca.lab.testbed.ranks.host.HostPlan`).
    gpus : sequence of Gpu, optional
        GPUs of this machine, as `require_gpus` found them; without it they are looked for, in about a second.

    Raises
    ------
    InvalidInput
        If a fault needs something that this machine does not permit.
    GpuMissing
        If the job has more GPU ranks than this machine has usable GPUs.
    CaptureFailed
        If the job failed without a fault that ends it.
    Busy
        If another capture is running.
    """
    with exclusive(), interrupted_once():
        sweep()
        count = len(scenario.job.gpu_ranks)
        found = () if count == 0 else require_gpus(count) if gpus is None else gpus[:count]
        permitted = probe()
        refuse_impossible(scenario, permitted)
        with assembled(scenario, permitted, found, average) as bed:
            record = _run(bed, on_progress, at_step)
    return Captured(window_of(scenario, record), label_of(scenario, record))


def capture_to(
    scenario: CaptureScenario,
    path: Path,
    *,
    on_progress: OnProgress = lambda phase, done, total: None,
    max_foreign_cpu: float = 1.0,
    gpus: Sequence[Gpu] | None = None,
) -> Captured:
    """Run a scenario and write its labelled window's folder; nothing is written after a failure.

    Parameters
    ----------
    max_foreign_cpu : float
        Largest share of the CPU time, from 0 to 1, that other processes may use.
    gpus : sequence of Gpu, optional
        Of `capture`.

    Raises
    ------
    CaptureFailed
        If the job failed without a fault that ends it, or other processes used more of the CPU time.
    """
    captured = capture(scenario, on_progress=on_progress, gpus=gpus)
    used = (captured.label.model_extra or {})["stranger_cpu_share"]
    if used > max_foreign_cpu:
        raise CaptureFailed(
            f"{scenario.name}: other processes used {used:.0%} of the CPU time, limit {max_foreign_cpu:.0%}",
            hint="the capture is not kept; stop other programs and repeat it",
        )
    write_labelled(captured.window, captured.label, path)
    return captured


def refuse_impossible(scenario: CaptureScenario, permitted: Capabilities) -> None:
    """Refuse faults that this machine does not permit."""
    for fault in scenario.faults:
        lacking = permitted.lacking(fault.kind)
        if lacking:
            raise InvalidInput(
                f"{scenario.name}: {fault.kind} needs {', '.join(lacking)}; this machine does not permit it",
                hint="`rca testbed probe` lists what it permits",
            )


@contextlib.contextmanager
def interrupted_once() -> Iterator[None]:
    """Let SIGTERM act like Ctrl-C; a second signal does not disturb the teardown."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(bed: Bed, on_progress: OnProgress, at_step: AtStep) -> CaptureRecord:
    draw = np.random.default_rng(bed.scenario.seed)
    offset = time.time() - time.monotonic()
    benign = [_BENIGN_ACTIONS[kind](bed, draw) for kind in bed.scenario.benign if kind in _BENIGN_ACTIONS]
    schedule = FaultSchedule([(fault, injector(bed, fault)) for fault in bed.scenario.faults])
    sampler, account = Sampler(bed), CpuAccount()
    watch = _ProgressWatch(bed, on_progress)
    due = 0.0
    try:
        while watch.is_running():
            for each in benign:
                each.at_step(watch.slowest)
            at_step(bed, watch.slowest)
            schedule.advance(watch.slowest, watch.fastest)
            now = time.monotonic()
            if watch.slowest >= 0 and now >= due:
                sampler.sample(now)
                account.observe(now, [os.getpid(), *bed.process_table.alive])
                due = max(due + SAMPLE_PERIOD_SECONDS, now)
            time.sleep(_POLL_SECONDS)
    finally:
        schedule.close()
        sampler.close()
    return CaptureRecord(
        rows=[held.shared.rows.copy() for held in bed.ranks],
        samples=sampler.series.samples,
        exits=watch.exits,
        acted=schedule.acted,
        unix_offset=offset,
        foreign_cpu_share=account.foreign_cpu_share(bed.permitted.cores),
        permitted=bed.permitted,
        gpus=sampler.gpus,
        pace=bed.ranks[0].shared.pace.copy() if bed.gpus else None,
    )


@dataclass
class _Planned:
    fault: TestbedFault
    injector: Injector
    acted: Acted | None = None
    over: bool = False


class FaultSchedule:
    """Starts and stops injectors as the job's steps go by.

    Parameters
    ----------
    injectors : list of (TestbedFault, Injector)
    """

    def __init__(self, injectors: list[tuple[TestbedFault, Injector]]) -> None:
        self._plans = [_Planned(fault, injector) for fault, injector in injectors]

    def advance(self, slowest: int, fastest: int) -> None:
        """Start and stop what is due when the slowest and the fastest rank are in these steps."""
        for plan in self._plans:
            if plan.acted is None and fastest >= plan.fault.first_step:
                plan.injector.start()
                plan.acted = Acted(plan.fault, fastest, None)
            last = plan.fault.last_step
            if plan.acted is not None and not plan.over and last is not None and slowest > last:
                plan.over = True
                plan.injector.stop()
                plan.acted = replace(plan.acted, last_step=slowest)

    def close(self) -> None:
        """Stop the faults that are still active."""
        for plan in self._plans:
            if plan.acted is not None and not plan.over:
                plan.over = True
                plan.injector.stop()

    @property
    def acted(self) -> list[Acted]:
        """Faults that were started, in the scenario's order."""
        return [plan.acted for plan in self._plans if plan.acted is not None]


class _ProgressWatch:
    """Follows the ranks' progress and notices ends, stalls and failures."""

    def __init__(self, bed: Bed, on_progress: OnProgress) -> None:
        self._bed = bed
        self._on_progress = on_progress
        faults = bed.scenario.faults
        self._stopping = next((fault for fault in faults if fault.spec.stops_the_job), None)
        self._began = self._progressed_at = time.monotonic()
        self.slowest = self.fastest = -1
        self.exits: list[Exit] = []

    def is_running(self) -> bool:
        """Update the state; False when the capture is complete."""
        self._reap()
        shared = [held.shared for held in self._bed.ranks]
        if all(each.finished for each in shared):
            return False
        before = (self.slowest, self.fastest)
        steps = [each.step for each in shared]
        self.slowest, self.fastest = min(steps), max(steps)
        now = time.monotonic()
        if (self.slowest, self.fastest) != before:
            self._progressed_at = now
            self._on_progress(self._bed.scenario.name, self.slowest + 1, self._bed.job.steps)
        return self._may_wait(now - self._progressed_at, now - self._began)

    def _may_wait(self, still: float, overall: float) -> bool:
        if self.slowest < 0:
            if overall > _START_SECONDS:
                raise self._failure("the ranks did not start")
            return True
        if self._stopping is not None and self.fastest >= self._stopping.first_step:
            return still < _STALL_SECONDS
        if still > _SLOW_STEP_SECONDS:
            raise self._failure("the job stopped without a fault that stops it")
        return True

    def _reap(self) -> None:
        for exit_ in self._bed.process_table.reap():
            if exit_.process.rank >= 0:
                self._rank_process_ended(exit_)
            elif exit_.code not in (0, 128 + signal.SIGKILL):
                raise self._failure(f"{exit_.process.role} ended with {exit_.code}")

    def _rank_process_ended(self, exit_: Exit) -> None:
        held = self._bed.ranks[exit_.process.rank]
        if held.shared.finished:
            return
        if self._stopping is None:
            raise self._failure(f"{exit_.process.role} of rank {held.rank} ended with {exit_.code}")
        self.exits.append(exit_)
        if exit_.process.role == "device":
            # A host aborts at its next call to a lost device.
            send(held.processes["host"], signal.SIGABRT)

    def _failure(self, what: str) -> CaptureFailed:
        log = self._bed.log
        tail = log.read_text(encoding="utf-8")[-2000:] if log.exists() else ""
        return CaptureFailed(f"{self._bed.scenario.name}: {what}", hint=tail or None)
