"""Sampling of GPUs by a separate process that calls NVML.

NVML stays out of the capture's process for three reasons: the capture forks, some queries take 20 ms, and a
lost GPU may never answer.
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

from rca.lab.testbed.gpus import Gpu
from rca.lab.testbed.names import node_name
from rca.lab.testbed.process import ProcessTable, Spawned
from rca.lab.testbed.sampling.nvml import NAMES, GpuProbe
from rca.lab.testbed.sampling.series import Series
from rca.lab.testbed.scenario import TestbedJob

OTHER_PROCESS = "other process"
_REASONS_NAME = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
_READ_BYTES = 1 << 20


@dataclass
class GpuObservation:
    """Observations of one rank's GPU apart from the samples.

    Attributes
    ----------
    answered : list of str
        Metric names with values.
    rounds : int
        Number of query rounds.
    samples : Counter of str
        Answers by name; fewer than `rounds` if some queries failed.
    reasons : int
        All clock event reasons that were set at any time.
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
        """Names that never had a value."""
        return [name for name in NAMES if name not in self.answered]

    @property
    def interrupted(self) -> list[str]:
        """Names that had a value at first and later missed some."""
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
    """Query all GPUs periodically and write a line per GPU and round, until killed."""
    import pynvml

    pynvml.nvmlInit()
    report([GpuProbe(pynvml, uuid) for uuid in uuids], partial(os.write, writer), period)


def report(
    probes: Sequence[GpuProbe], write: Callable[[bytes], Any], period: float, rounds: int | None = None
) -> None:
    """Write the available names of each GPU, then its values, one line each.

    Parameters
    ----------
    period : float
        Seconds between the starts of two rounds.
    rounds : int, optional
        Unlimited by default.
    """
    for number, probe in enumerate(probes):
        write(_line({"gpu": number, "answered": probe.answered}))
    asked = 0
    while asked != rounds:
        began = time.monotonic()
        for number, probe in enumerate(probes):
            now = time.monotonic()
            message = {"gpu": number, "time": now, "values": probe.read()}
            write(_line(message | {"processes": [*probe.processes().items()]}))
        asked += 1
        time.sleep(max(0.0, began + period - time.monotonic()))


def _line(message: dict[str, Any]) -> bytes:
    return orjson.dumps(message) + b"\n"


class GpuWatch:
    """Starts the watching process and reads its lines.

    Parameters
    ----------
    gpus : mapping of int to Gpu
        By rank.
    """

    def __init__(
        self, job: TestbedJob, gpus: Mapping[int, Gpu], process_table: ProcessTable, period: float
    ) -> None:
        self.seen = [GpuObservation(rank, gpu) for rank, gpu in gpus.items()]
        self._job = job
        self._process_table = process_table
        self._roles: dict[int, str] = {}
        self._rest = b""
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        process_table.spawn("nvml", partial(watch, [gpu.uuid for gpu in gpus.values()], writer, period))
        os.close(writer)

    def take(self, series: Series, since: float) -> None:
        """Append the samples taken at or after `since`, monotonic seconds."""
        # A process may have ended after NVML counted it.
        self._roles |= {pid: _role(process) for pid, process in self._process_table.alive.items()}
        for line in self._lines():
            message = orjson.loads(line)
            seen = self.seen[message["gpu"]]
            if "answered" in message:
                seen.answered = message["answered"]
            elif message["time"] >= since:
                self._add(series, seen, message)

    def close(self) -> None:
        """Close our end of the pipe."""
        os.close(self._reader)

    def _lines(self) -> list[bytes]:
        """Complete lines that have arrived; an incomplete line waits for its rest."""
        try:
            while arrived := os.read(self._reader, _READ_BYTES):
                self._rest += arrived
        except BlockingIOError:
            pass
        *whole, self._rest = self._rest.split(b"\n")
        return whole

    def _add(self, series: Series, seen: GpuObservation, message: dict[str, Any]) -> None:
        values: dict[str, float] = message["values"]
        node = node_name(self._job.node_of(seen.rank))
        # Labels as of an exporter: the node and the GPU's number there, no rank.
        series.add(message["time"], values, node=node, device=str(self._job.place_in_node(seen.rank)))
        seen.rounds += 1
        seen.samples.update(values.keys())
        seen.reasons |= int(values.get(_REASONS_NAME, 0))
        for pid, percent in message["processes"]:
            role = self._roles.get(pid, OTHER_PROCESS)
            seen.sm_percent[role] = seen.sm_percent.get(role, 0.0) + percent


def _role(process: Spawned) -> str:
    return process.role if process.rank < 0 else f"{process.role} of rank {process.rank}"
