"""A synchronous job as a table of durations: ranks work, wait for the last one, and exchange gradients.

Plain arithmetic from the figures of a report. It shares no code with `rca.lab.simulation`: a model trained on
simulated windows meets jobs that were made in another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.retold_incidents.exporters import Exporters
from rca.arrays import BoolArray, FloatArray
from rca.window import Window

#: Phases before the collective, in their order, and phases after it.
BEFORE = ("data_loading", "host_to_device", "gc", "forward", "backward")
AFTER = ("optimizer", "checkpoint")
#: Relative noise of a duration beside that of the job, by phase.
JITTER = {"data_loading": 18.0, "host_to_device": 4.0, "gc": 8.0, "checkpoint": 4.0}
PEER_LOST = (
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
)
WATCHDOG = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={}, Timeout(ms)={})"


@dataclass(frozen=True)
class Timers:
    """What the window of a job has.

    Attributes
    ----------
    phases : tuple of str, optional
        Phases that are timed; all of them by default.
    waiting : str
        ``split`` into wait and transfer, ``joint`` in one column, within ``backward`` as an overlapped
        all-reduce ends, or ``untimed``.
    """

    phases: tuple[str, ...] | None
    waiting: str
    exporters: bool
    with_steps: bool

    @classmethod
    def of(cls, text: str) -> Timers:
        """Read ``PHASES, WAITING[, exporters]``: names of phases or ``all``, ``none``, ``absent``, ``few``.

        Few are forward and backward. Absent are the steps themselves.
        """
        names, waiting, *more = text.split(", ")
        known = {"all": None, "few": ("forward", "backward"), "none": (), "absent": ()}
        phases = known.get(names, tuple(names.split()))
        return cls(phases, waiting, more == ["exporters"], names != "absent")


@dataclass
class ReportedJob:
    """Durations of each rank and step, what the exporters show, and events.

    An incident changes the durations first. The job is played when its exporters or times are asked for.

    Attributes
    ----------
    seconds : mapping of phase to float, seconds
        Mean durations of the phases in `BEFORE` and `AFTER` and of ``transfer``.
    noise : float
        Relative standard deviation of computing from step to step; windows have 0.7 to 1.8 times as much.
    gpu : str
        A key of `benchmarks.retold_incidents.exporters.GPUS`.
    every : float, seconds
        Interval of the scrapes.
    ports : int
        InfiniBand or RoCE ports of a node.
    stop_at : int, optional
        Index of a step that no rank finishes.
    tail : float, seconds, optional
        From the last finished step to the end of the window; by default a part of a step.
    groups : ndarray of shape (n_ranks,), optional
        Communication group of each rank; by default all are in one. Ranks of one node wait for each other
        in the next forward, as tensor parallelism makes them.
    unfinished : ranks, optional
        Ranks with a row of the step that they did not finish.
    kept : ndarray of bool of shape (n_ranks, n_finished), optional
        Rows to write; all by default.
    load : mapping of column to ndarray of shape (n_ranks, n_steps)
        Samples, tokens and squared lengths.
    phase : dict of phase to ndarray of shape (n_ranks, n_steps), seconds
        ``transfer`` is the exchange, ``untimed`` within the step, ``between`` two steps.
    skew : ndarray of shape (n_nodes,), seconds
        How far each node's clock is ahead.
    """

    rng: np.random.Generator
    name: str
    timers: Timers
    ranks: int
    steps: int
    seconds: Mapping[str, float]
    per_node: int = 8
    noise: float = 0.01
    framework: str = "pytorch"
    parallelism: Mapping[str, int] | None = None
    gpu: str = "H100"
    every: float = 15.0
    ports: int = 8
    roce: bool = False
    processes: bool = False
    stop_at: int | None = None
    tail: float | None = None
    groups: npt.NDArray[np.integer] | None = None
    unfinished: Any = None
    kept: BoolArray | None = None
    load: Mapping[str, FloatArray] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    earlier: Window | None = None

    def __post_init__(self) -> None:
        rng, size = self.rng, (self.ranks, self.steps)
        self.start = 1_782_000_000.0 + float(rng.integers(0, 5_000_000))
        noise = self.noise * float(rng.uniform(0.7, 1.8))
        chip = 1 + 0.004 * rng.standard_normal((self.ranks, 1))
        self.phase: dict[str, FloatArray] = {}
        for name, mean in self.seconds.items():
            sigma = min(0.5, noise * JITTER.get(name, 1.0))
            drawn = mean * rng.lognormal(-(sigma**2) / 2, sigma, size)
            if name in {"forward", "backward"}:
                # A long queue of rare hiccups: an interrupt, a page fault, a timer of another process.
                drawn = drawn * chip
                hiccups = rng.random(size) < 0.0015
                drawn = drawn + hiccups * mean * rng.exponential(0.08, size)
            self.phase[name] = drawn
        # All ranks end a collective together: the noise of a ring is shared.
        transfer = self.phase.pop("transfer", np.zeros(size))
        transfer = transfer.mean(axis=0) * np.ones((self.ranks, 1)) * (1 + 0.02 * noise)
        transfer = transfer * rng.lognormal(0, 2 * noise, (1, self.steps))
        self.transfer = transfer * rng.lognormal(0, noise / 3, size)
        self.untimed: FloatArray = np.zeros(size)
        self.between: FloatArray = np.abs(rng.normal(0, 2e-4, size))
        self.skew: FloatArray = np.zeros(self.n_nodes)
        self.begin = self.wait = self.whole = np.zeros((0, 0))
        self.end = 0.0

    @property
    def n_nodes(self) -> int:
        return -(-self.ranks // self.per_node)

    def node(self, index: int) -> str:
        return f"node-{index:03d}"

    def of_node(self, *nodes: int) -> list[int]:
        """Ranks of some nodes."""
        return [rank for rank in range(self.ranks) if rank // self.per_node in nodes]

    def held(self, phase: str) -> FloatArray:
        """Durations of a phase, to be changed in place."""
        if phase in {"transfer", "untimed", "between"}:
            found: FloatArray = getattr(self, phase)
            return found
        return self.phase.setdefault(phase, np.zeros((self.ranks, self.steps)))

    def slow(
        self, phases: str, factor: float | FloatArray, ranks: Any = slice(None), since: int = 0,
        until: int | None = None,
    ) -> None:  # fmt: skip
        """Multiply phases of some ranks in some steps; ``compute`` is forward and backward."""
        for name in phases.replace("compute", "forward backward").split():
            rows = np.arange(self.ranks)[ranks]
            self.held(name)[rows, since:until] *= factor

    def delay(
        self, phase: str, seconds: float | FloatArray, ranks: Any = slice(None), steps: Any = slice(None)
    ) -> None:
        """Add seconds to a phase of some ranks in some steps."""
        self.held(phase)[ranks, steps] += seconds

    def play(self) -> None:
        """Let the ranks wait for each other."""
        if self.end:
            return
        shape = self.untimed.shape
        before, after = (
            sum((self.phase[name] for name in names if name in self.phase), np.zeros(shape))
            for names in (BEFORE, AFTER)
        )
        before = before + self.untimed
        grouped = self.groups is not None
        members = np.zeros(self.ranks, dtype=np.int64) if self.groups is None else self.groups
        nodes = np.arange(self.ranks) // self.per_node
        clock = self.start + np.abs(self.rng.normal(0, 1e-3, self.ranks))
        self.begin, self.wait, inner = (np.zeros(shape) for _ in range(3))
        for step in range(self.steps):
            self.begin[:, step] = clock
            if grouped:
                inner[:, step] = _last_of(clock, nodes) - clock
            arrive = clock + inner[:, step] + before[:, step]
            last = _last_of(arrive, members)
            self.wait[:, step] = last - arrive
            clock = last + self.transfer[:, step] + after[:, step] + self.between[:, step]
        if grouped:
            self.phase["forward"] = self.phase["forward"] + inner
        self.whole = before + inner + self.wait + self.transfer + after
        tail = self.tail
        if tail is None:
            tail = float(self.rng.uniform(0.1, 0.9) * np.median(self.whole))
        self.end = self.stopped + tail

    @property
    def finished(self) -> int:
        """Number of steps that all ranks finish."""
        return self.steps if self.stop_at is None else self.stop_at

    def at(self, step: int) -> float:
        """When the step began, on the clock of the first rank."""
        self.play()
        return float(self.begin[0, step])

    @property
    def stopped(self) -> float:
        """When the last finished step ended."""
        if not self.begin.size:
            self.play()
        if not self.begin.size:
            self.play()
        if not self.finished:
            return float(self.begin.min())
        return float((self.begin + self.whole)[:, self.finished - 1].max())

    @cached_property
    def seen(self) -> Exporters:
        """What the exporters show, which an incident changes; nothing where the window has none."""
        self.play()
        return Exporters(self)

    def event(
        self, at: float, rank: int | None, kind: str, message: str | None = None, *, code: Any = None,
        node: int | None = None,
    ) -> None:  # fmt: skip
        """Add a row of the events table, on the rank's node or another one."""
        at_node = node if rank is None else rank // self.per_node
        where = {"node": None if at_node is None else self.node(at_node), "rank": rank}
        self.events.append({"time": at, **where, "kind": kind, "code": code, "message": message})

    def watchdogs(
        self, begin: float, spread: float, numbers: Mapping[int, int], milliseconds: int,
        operation: str = "ALLREDUCE", text: str = "",
    ) -> None:  # fmt: skip
        """Timeouts of a collective within `spread` seconds, one per rank with its sequence number."""
        for rank, number in numbers.items():
            message = text.format(rank) + WATCHDOG.format(number, operation, milliseconds)
            self.event(begin + float(self.rng.uniform(0, spread)), rank, "nccl_timeout", message)

    def gang_abort(self, culprits: Iterable[int], code: str, after: tuple[float, float]) -> None:
        """Exits of all others with the same code within an interval after the first errors."""
        begin = self.events[-1]["time"]
        for rank in set(range(self.ranks)) - set(culprits):
            at = begin + float(self.rng.uniform(*after))
            if self.rng.random() < 0.7:
                self.event(at - 0.3, rank, "log", PEER_LOST)
            self.event(at, rank, "process_exit", code=code)
        self.events.sort(key=lambda row: row["time"])

    def usual(self, seconds_before: float, **changes: Any) -> None:
        """Compare the window with one of the sound job before it, with other fields."""
        self.play()
        job = replace(self, **changes)
        job.start = self.start - seconds_before
        self.earlier = job.window()

    def window(self) -> Window:
        """The telemetry window."""
        self.play()
        document = {
            "format": 1, "window_id": self.name, "job_id": self.name, "framework": self.framework,
            "world_size": self.ranks, "parallelism": dict(self.parallelism or {"data": self.ranks}),
            "ranks": [
                {"rank": rank, "node": self.node(rank // self.per_node), "gpu": rank % self.per_node}
                for rank in range(self.ranks)
            ],
            "start": self.start, "end": self.end,
        }  # fmt: skip
        steps = self._table() if self.timers.with_steps else None
        return Window.from_tables(document, steps, self.seen.table(), self.events or None)

    def _table(self) -> pa.Table | None:
        n, timers = self.finished, self.timers
        names = tuple(self.phase) if timers.phases is None else timers.phases
        columns = {f"{name}_seconds": self.phase[name] for name in names}
        exchange = self.wait + self.transfer
        if timers.waiting == "split":
            columns |= {"communication_wait_seconds": self.wait}
            columns |= {"communication_transfer_seconds": self.transfer}
        elif timers.waiting == "joint":
            columns["communication_seconds"] = exchange
        elif timers.waiting == "backward":
            columns["backward_seconds"] = columns["backward_seconds"] + exchange
        columns |= {"step_seconds": self.whole, **self.load}
        keep = np.ones((self.ranks, n), dtype=bool) if self.kept is None else self.kept
        rank, step = (grid[keep] for grid in np.mgrid[0 : self.ranks, 0:n])
        ahead = self.skew[np.arange(self.ranks) // self.per_node]
        values = {"start_time": (self.begin[:, :n] + ahead[:, None])[keep]}
        values |= {name: column[:, :n][keep] for name, column in columns.items()}
        if self.unfinished is not None:
            more = np.arange(self.ranks)[self.unfinished]
            rank, step = np.concatenate([rank, more]), np.concatenate([step, np.full(more.size, n)])
            last = n - 1
            began = self.begin[more, n] if n < self.steps else (self.begin + self.whole)[more, last]
            values = {
                name: np.concatenate([held, began if name == "start_time" else np.full(more.size, np.nan)])
                for name, held in values.items()
            }
        return pa.table({"rank": rank.astype(np.int32), "step": step, **values}) if rank.size else None


def _last_of(times: FloatArray, members: npt.NDArray[np.integer]) -> FloatArray:
    """The latest time of each rank's group."""
    latest = np.full(int(members.max()) + 1, -np.inf)
    np.maximum.at(latest, members, times)
    return latest[members]
