"""Faults in the job's own processes: settings in shared memory, and signals that end or stop a process."""

from __future__ import annotations

import signal
from collections.abc import Callable

from rca.lab.testbed.injection.injector import Injector
from rca.lab.testbed.process import send
from rca.lab.testbed.ranks.shared import NEUTRAL, Knob
from rca.lab.testbed.scenario import TestbedJob

CHECKPOINT_EVERY_STEPS = 6
Setting = Callable[[float, TestbedJob], dict[Knob, float]]

KNOB_FAULTS: dict[str, Setting] = {
    "slow_dataset": lambda level, job: {Knob.LOADER_DELAY_SECONDS: level * job.nominal_step_seconds},
    "heavy_decoding": lambda level, job: {Knob.DECODE_SECONDS: level * job.nominal_step_seconds},
    "device_clock": lambda level, _job: {Knob.KERNEL_FACTOR: level},
    "full_last_stage": lambda level, _job: {Knob.KERNEL_FACTOR: level},
    "pageable_copies": lambda level, _job: {Knob.PAGEABLE_SHARE: level},
    "gc_pauses": lambda level, _job: {Knob.KEPT_OBJECTS: level},
    "sequence_lengths": lambda level, _job: {Knob.LENGTH_SPREAD: level},
    "checkpoint_stall": lambda level, job: {
        Knob.CHECKPOINT_SECONDS: level * job.nominal_step_seconds,
        Knob.CHECKPOINT_EVERY: CHECKPOINT_EVERY_STEPS,
    },
}
_SIGNALS = {
    "killed_rank": ("host", signal.SIGKILL),
    "killed_device": ("device", signal.SIGKILL),
    "hung_rank": ("host", signal.SIGSTOP),
    "hung_device": ("device", signal.SIGSTOP),
}


class KnobFault(Injector):
    """Set knobs of the affected ranks, and reset them."""

    def start(self) -> None:
        for knob, value in self._settings().items():
            for rank in self.affected_ranks:
                self.bed.ranks[rank].shared.knobs[knob] = value

    def stop(self) -> None:
        for knob in self._settings():
            for rank in self.affected_ranks:
                self.bed.ranks[rank].shared.knobs[knob] = NEUTRAL[knob]

    def _settings(self) -> dict[Knob, float]:
        return KNOB_FAULTS[self.fault.kind](self.fault.level, self.bed.job)


class ProcessSignal(Injector):
    """Kill or stop one process of each affected rank."""

    def start(self) -> None:
        role, number = _SIGNALS[self.fault.kind]
        for rank in self.affected_ranks:
            send(self.bed.ranks[rank].processes[role], number)

    def stop(self) -> None:
        """Do nothing: a stopped job does not continue, and the teardown ends its processes."""
