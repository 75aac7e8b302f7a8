"""Capabilities of this machine, found by trying them."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from rca.lab.testbed.catalogue import FAULTS, Need
from rca.lab.testbed.cgroups import Hierarchies, find_hierarchies
from rca.lab.testbed.names import PREFIX
from rca.lab.testbed.network import relay_permitted, succeeds

_TRIAL = f"{PREFIX}-probe"


@dataclass(frozen=True)
class Capabilities:
    """Capabilities that the testbed may use.

    Attributes
    ----------
    namespaces, htb, netem, relay : bool
        Network namespaces with cables; token buckets; the kernel's delay and loss; our relay as a
        replacement.
    cpu_groups, disk_groups, memory_groups, pressure : bool
        Writable control groups by controller; pressure (PSI) files per group.
    real_time : bool
        SCHED_FIFO for processes that replace hardware.
    direct_reads : bool
        Whether files in the temporary folder can be read without the page cache.
    """

    cores: int
    namespaces: bool
    htb: bool
    netem: bool
    relay: bool
    cpu_groups: bool
    disk_groups: bool
    memory_groups: bool
    pressure: bool
    real_time: bool
    direct_reads: bool
    torch: bool

    def lacking(self, kind: str) -> list[Need]:
        """Capabilities that a fault of this kind needs and this machine lacks."""
        return [need for need in FAULTS[kind].needs if not getattr(self, need)]

    def as_dict(self) -> dict[str, int | bool]:
        """For reports and manifests."""
        return asdict(self)


def probe() -> Capabilities:
    """Try every capability that the testbed can use; leaves nothing behind."""
    groups = find_hierarchies()
    namespaces = succeeds("ip", "netns", "add", _TRIAL)
    cable = namespaces and _cable()
    try:
        return Capabilities(
            cores=len(os.sched_getaffinity(0)),
            namespaces=cable,
            htb=cable and _queue("htb"),
            netem=cable and _queue("netem", "delay", "1ms"),
            relay=cable and relay_permitted(_TRIAL, "eth0"),
            cpu_groups=_creatable(groups, "cpu"),
            disk_groups=_creatable(groups, "blkio"),
            memory_groups=_creatable(groups, "memory"),
            pressure=groups.unified is not None and (groups.unified / "cpu.pressure").exists(),
            real_time=_real_time(),
            direct_reads=_direct_reads(),
            torch=installed("torch"),
        )
    finally:
        if namespaces:
            succeeds("ip", "netns", "delete", _TRIAL)


def installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    return find_spec(module) is not None


def _cable() -> bool:
    return succeeds("ip", "-n", _TRIAL, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")


def _queue(kind: str, *arguments: str) -> bool:
    made = succeeds("tc", "-n", _TRIAL, "qdisc", "add", "dev", "eth0", "root", kind, *arguments)
    return made and succeeds("tc", "-n", _TRIAL, "qdisc", "delete", "dev", "eth0", "root")


def _creatable(groups: Hierarchies, controller: str) -> bool:
    root = groups.mounts.get(controller)
    if root is None:
        return False
    trial = root / _TRIAL
    try:
        trial.mkdir()
    except OSError:
        return False
    trial.rmdir()
    return True


def _real_time() -> bool:
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, policy, parameters)
    return True


def _direct_reads() -> bool:
    with tempfile.NamedTemporaryFile(prefix=_TRIAL) as file:
        file.write(bytes(4096))
        file.flush()
        try:
            os.close(os.open(Path(file.name), os.O_RDONLY | os.O_DIRECT))
        except OSError:
            return False
    return True
