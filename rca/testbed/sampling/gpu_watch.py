"""NVML asked by a process of its own, and what it says brought into the series.

NVML stays out of the capture's process: that one forks, some queries take 20 ms, and a lost GPU may never
answer at all.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from rca.testbed.gpus import Gpu
from rca.testbed.names import node_name
from rca.testbed.process import Family, Spawned
from rca.testbed.sampling.nvml import NAMES, GpuProbe
from rca.testbed.sampling.series import Series
from rca.testbed.scenario import JobShape

STRANGER = "stranger"
_REASONS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
_READ_BYTES = 1 << 20


@dataclass
class GpuSeen:
    """What was seen of one rank's GPU besides the samples.

    Attributes
    ----------
    answered : list of str
        Names it has values for.
    rounds : int
        Times it was asked.
    samples : Counter of str
        Answers by name; fewer than `rounds` where a query failed in between.
    reasons : int
        All clock event reasons that were set at some time.
    sm_percent : dict of str to float
        Sum over the rounds of the SM time used, by the role of the process in the testbed.
    """

    rank: int
    gpu: Gpu
    answered: list[str] = field(default_factory=list)
    rounds: int = 0
    samples: Counter[str] = field(default_factory=Counter)
    reasons: int = 0
    sm_percent: dict[str, float] = field(default_factory=dict)

    @property
    def unanswered(self) -> list[str]:
        """Names it never had a value for."""
        return [name for name in NAMES if name not in self.answered]

    @property
    def interrupted(self) -> list[str]:
        """Names that had a value at first and not always after."""
        return [name for name in self.answered if self.samples[name] < self.rounds]

    def as_dict(self) -> dict[str, Any]:
        """For the label."""
        return {
            "rank": self.rank,
            "name": self.gpu.name,
            "driver": self.gpu.driver,
            "rounds": self.rounds,
            "unanswered": self.unanswered,
            "interrupted": self.interrupted,
            "clock_event_reasons": self.reasons,
            "mean_sm_percent": {
                role: held / max(1, self.rounds) for role, held in sorted(self.sm_percent.items())
            },
        }


def watch(uuids: Sequence[str], writer: int, period: float) -> None:
    """Ask all GPUs again and again and write a line per GPU and round, until killed."""
    import pynvml

    pynvml.nvmlInit()
    report([GpuProbe(pynvml, uuid) for uuid in uuids], partial(os.write, writer), period)


def report(
    probes: Sequence[GpuProbe], write: Callable[[bytes], Any], period: float, rounds: int | None = None
) -> None:
    """Write what each GPU answers, then its values, a line each.

    Parameters
    ----------
    period : float
        Seconds from one round's beginning to the next one's.
    rounds : int, optional
        Without end if not given.
    """
    for number, probe in enumerate(probes):
        write(_line({"gpu": number, "answered": probe.answered}))
    asked = 0
    while asked != rounds:
        began = time.monotonic()
        for number, probe in enumerate(probes):
            now = time.monotonic()
            said = {"gpu": number, "time": now, "values": probe.read()}
            write(_line(said | {"processes": [*probe.processes().items()]}))
        asked += 1
        time.sleep(max(0.0, began + period - time.monotonic()))


def _line(said: dict[str, Any]) -> bytes:
    return orjson.dumps(said) + b"\n"


class GpuWatch:
    """Starts the watching process and takes in what it has written since.

    Parameters
    ----------
    gpus : mapping of int to Gpu
        By rank.
    """

    def __init__(self, job: JobShape, gpus: Mapping[int, Gpu], family: Family, period: float) -> None:
        self.seen = [GpuSeen(rank, gpu) for rank, gpu in gpus.items()]
        self._job = job
        self._family = family
        self._roles: dict[int, str] = {}
        self._rest = b""
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        family.spawn("nvml", partial(watch, [gpu.uuid for gpu in gpus.values()], writer, period))
        os.close(writer)

    def take(self, series: Series, since: float) -> None:
        """Append the samples taken at or after `since`, monotonic seconds."""
        # A process may have ended since NVML counted it.
        self._roles |= {pid: _role(process) for pid, process in self._family.alive.items()}
        for line in self._lines():
            said = orjson.loads(line)
            seen = self.seen[said["gpu"]]
            if "answered" in said:
                seen.answered = said["answered"]
            elif said["time"] >= since:
                self._enter(series, seen, said)

    def close(self) -> None:
        """Close our end of the pipe."""
        os.close(self._reader)

    def _lines(self) -> list[bytes]:
        """Whole lines that have arrived; a part of one waits for its rest."""
        try:
            while arrived := os.read(self._reader, _READ_BYTES):
                self._rest += arrived
        except BlockingIOError:
            pass
        *whole, self._rest = self._rest.split(b"\n")
        return whole

    def _enter(self, series: Series, seen: GpuSeen, said: dict[str, Any]) -> None:
        values: dict[str, float] = said["values"]
        node = node_name(self._job.node_of(seen.rank))
        # As an exporter labels it: the node and the GPU's number there, no rank.
        series.add(said["time"], values, node=node, device=str(self._job.place_in_node(seen.rank)))
        seen.rounds += 1
        seen.samples.update(values.keys())
        seen.reasons |= int(values.get(_REASONS, 0))
        for pid, percent in said["processes"]:
            role = self._roles.get(pid, STRANGER)
            seen.sm_percent[role] = seen.sm_percent.get(role, 0.0) + percent


def _role(process: Spawned) -> str:
    return process.role if process.rank < 0 else f"{process.role} of rank {process.rank}"
