"""Injectors: each starts a fault on a running testbed and stops it again."""

from __future__ import annotations

from rca.lab.testbed.bed import Bed
from rca.lab.testbed.injection.benign import Hiccup, NeighbourLoad, SlowWarmUp
from rca.lab.testbed.injection.device import GPU_WORK, DutyCycle, ForeignCopiers, ForeignGpuWork
from rca.lab.testbed.injection.host import CpuHogs, CpuQuota, MemoryLimit, ReadLimit
from rca.lab.testbed.injection.injector import Injector
from rca.lab.testbed.injection.job import KNOB_FAULTS, KnobFault, ProcessSignal
from rca.lab.testbed.injection.network import LinkDelay, LinkLoss, LinkRate
from rca.lab.testbed.scenario import TestbedFault

__all__ = ["Hiccup", "Injector", "NeighbourLoad", "SlowWarmUp", "injector"]

_KINDS: dict[str, type[Injector]] = {
    "cpu_hogs": CpuHogs,
    "cpu_quota": CpuQuota,
    "nic_rate": LinkRate,
    "fabric_rate": LinkRate,
    "nic_delay": LinkDelay,
    "nic_loss": LinkLoss,
    "storage_throttle": ReadLimit,
    "device_duty_cycle": DutyCycle,
    "copy_bandwidth": ForeignCopiers,
    "memory_pressure": MemoryLimit,
    "killed_rank": ProcessSignal,
    "killed_device": ProcessSignal,
    "hung_rank": ProcessSignal,
    "hung_device": ProcessSignal,
    **dict.fromkeys(KNOB_FAULTS, KnobFault),
    **dict.fromkeys(GPU_WORK, ForeignGpuWork),
}


def injector(bed: Bed, fault: TestbedFault) -> Injector:
    """The injector of a fault on this bed."""
    return _KINDS[fault.kind](bed, fault)
