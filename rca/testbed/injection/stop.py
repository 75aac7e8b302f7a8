"""Faults that end the job: a signal to the host or to the device process."""

from __future__ import annotations

import signal

from rca.testbed.injection.injector import Injector
from rca.testbed.process import send

_SIGNALS = {
    "killed_rank": ("host", signal.SIGKILL),
    "killed_device": ("device", signal.SIGKILL),
    "hung_rank": ("host", signal.SIGSTOP),
    "hung_device": ("device", signal.SIGSTOP),
}


class Signalled(Injector):
    """Kill or freeze one process of each victim."""

    def start(self) -> None:
        role, number = _SIGNALS[self.fault.kind]
        for rank in self.victims:
            send(self.bed.ranks[rank].processes[role], number)

    def stop(self) -> None:
        """Nothing brings a stopped job back; the teardown ends its processes."""
