"""A synchronous job as a table of durations: ranks work, wait for the last one, and exchange gradients.

Plain arithmetic from the figures of a report. It shares no code with `rca.lab.simulation`: a model trained on
simulated windows meets jobs that were made in another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import FloatArray
from rca.window import Window

#: Phases before the collective, in their order, and phases after it.
BEFORE = ("data_loading", "host_to_device", "gc", "forward", "backward")
AFTER = ("optimizer", "checkpoint")
#: Relative noise of a duration beside that of the job, by phase.
JITTER = {"data_loading": 18.0, "host_to_device": 4.0, "gc": 8.0, "checkpoint": 4.0}


class Job:
    """Durations of each rank and step, which an incident changes before the job is played.

    Parameters
    ----------
    rng : Generator
    ranks, steps : int
    seconds : mapping of phase to float, seconds
        Mean durations of the phases in `BEFORE` and `AFTER` and of ``transfer``.
    noise : float
        Relative standard deviation of computing from step to step; windows have 0.7 to 1.8 times as much.
    spread : float
        Relative standard deviation between sound ranks: chips differ.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        ranks: int,
        steps: int,
        seconds: Mapping[str, float],
        *,
        per_node: int = 8,
        noise: float = 0.01,
        spread: float = 0.004,
        first_step: int = 0,
        framework: str = "pytorch",
        parallelism: Mapping[str, int] | None = None,
        node_names: str = "node-{:03d}",
    ) -> None:
        self.rng = rng
        self.ranks, self.steps, self.per_node = ranks, steps, per_node
        self.first_step, self.framework = first_step, framework
        self.parallelism = dict(parallelism or {"data": ranks})
        self.node_names = node_names
        self.start = 1_782_000_000.0 + float(rng.integers(0, 5_000_000))
        size = (ranks, steps)
        noise = noise * float(rng.uniform(0.7, 1.8))
        chip = 1 + spread * rng.standard_normal((ranks, 1))
        # A long queue of rare hiccups: an interrupt, a page fault, a timer of another process.
        self.phase: dict[str, FloatArray] = {}
        for name, mean in seconds.items():
            sigma = min(0.5, noise * JITTER.get(name, 1.0))
            drawn = mean * rng.lognormal(-(sigma**2) / 2, sigma, size)
            if name in {"forward", "backward"}:
                drawn = drawn * chip
                hiccups = rng.random(size) < 0.0015
                drawn = drawn + hiccups * mean * rng.exponential(0.08, size)
            self.phase[name] = drawn
        self.transfer = self.phase.pop("transfer", np.zeros(size))
        # All ranks end a collective together: the noise of a ring is shared.
        self.transfer = self.transfer.mean(axis=0) * np.ones((ranks, 1)) * (1 + 0.02 * noise)
        self.transfer = self.transfer * rng.lognormal(0, 2 * noise, (1, steps))
        self.transfer = self.transfer * rng.lognormal(0, noise / 3, size)
        #: Seconds within the step that no timer covers, and seconds between two steps.
        self.untimed: FloatArray = np.zeros(size)
        self.between: FloatArray = np.abs(rng.normal(0, 2e-4, size))

    @property
    def n_nodes(self) -> int:
        return -(-self.ranks // self.per_node)

    def node(self, index: int) -> str:
        return self.node_names.format(index)

    def of_node(self, index: int) -> list[int]:
        """Ranks of a node."""
        return list(range(index * self.per_node, min(self.ranks, (index + 1) * self.per_node)))

    def slow(self, phase: str, factor: float | FloatArray, ranks: Any = slice(None), since: int = 0) -> None:
        """Multiply a phase of some ranks from a step on; ``compute`` is forward and backward."""
        for name in ("forward", "backward") if phase == "compute" else (phase,):
            held = self.transfer if name == "transfer" else self.phase[name]
            rows = np.arange(self.ranks)[ranks]
            held[rows, since:] = held[rows, since:] * factor

    def play(
        self,
        *,
        groups: npt.NDArray[np.integer] | None = None,
        stop_at: int | None = None,
        tail: float | None = None,
    ) -> Played:
        """Let the ranks wait for each other.

        Parameters
        ----------
        groups : ndarray of shape (n_ranks,), optional
            Communication group of each rank; by default all are in one. Ranks of one node wait for each other
            in the next forward, as tensor parallelism makes them.
        stop_at : int, optional
            Index of a step that no rank finishes.
        tail : float, seconds, optional
            From the last finished step to the end of the window; by default a part of a step, as in a running
            job.
        """
        before = sum(
            (self.phase[name] for name in BEFORE if name in self.phase), np.zeros(self.untimed.shape)
        )
        before = before + self.untimed
        after = sum((self.phase[name] for name in AFTER if name in self.phase), np.zeros(self.untimed.shape))
        members = np.zeros(self.ranks, dtype=np.int64) if groups is None else np.asarray(groups)
        nodes = np.arange(self.ranks) // self.per_node
        clock = self.start + np.abs(self.rng.normal(0, 1e-3, self.ranks))
        begin, wait, inner = (np.zeros(self.untimed.shape) for _ in range(3))
        for step in range(self.steps):
            begin[:, step] = clock
            if groups is not None:
                inner[:, step] = _last_of(clock, nodes) - clock
            arrive = clock + inner[:, step] + before[:, step]
            last = _last_of(arrive, members)
            wait[:, step] = last - arrive
            clock = last + self.transfer[:, step] + after[:, step] + self.between[:, step]
        if groups is not None:
            self.phase["forward"] = self.phase["forward"] + inner
        whole = before + inner + wait + self.transfer + after
        finished = self.steps if stop_at is None else stop_at
        if tail is None:
            tail = float(self.rng.uniform(0.1, 0.9) * np.median(whole))
        end = float((begin + whole)[:, finished - 1].max()) if finished else float(begin.min())
        return Played(self, begin, wait, whole, finished, end + tail)


def _last_of(times: FloatArray, members: npt.NDArray[np.integer]) -> FloatArray:
    """The latest time of each rank's group."""
    latest = np.full(int(members.max()) + 1, -np.inf)
    np.maximum.at(latest, members, times)
    return latest[members]


@dataclass
class Played:
    """When each rank began each step and how long it waited; arrays have shape (n_ranks, n_steps)."""

    job: Job
    begin: FloatArray
    wait: FloatArray
    whole: FloatArray
    finished: int
    end: float
    #: Seconds that each node's clock is ahead.
    skew: FloatArray = field(default_factory=lambda: np.zeros(0))

    def at(self, step: int) -> float:
        """When the step began, on the clock of the first rank."""
        return float(self.begin[0, step])

    @property
    def stopped(self) -> float:
        """When the last finished step ended."""
        if not self.finished:
            return float(self.begin.min())
        return float((self.begin + self.whole)[:, self.finished - 1].max())

    def document(self, window_id: str) -> dict[str, Any]:
        """The job's metadata."""
        job = self.job
        return {
            "format": 1,
            "window_id": window_id,
            "job_id": window_id,
            "framework": job.framework,
            "world_size": job.ranks,
            "parallelism": job.parallelism,
            "ranks": [
                {"rank": rank, "node": job.node(rank // job.per_node), "gpu": rank % job.per_node}
                for rank in range(job.ranks)
            ],
            "start": job.start,
            "end": self.end,
        }

    def steps(
        self,
        phases: tuple[str, ...] | None = None,
        *,
        waiting: str = "split",
        unfinished: Any = None,
        kept: Any = None,
        load: Mapping[str, FloatArray] | None = None,
    ) -> pa.Table | None:
        """The steps table.

        Parameters
        ----------
        phases : tuple of str, optional
            Phases that are timed; all of them by default.
        waiting : str
            ``split`` into wait and transfer, ``joint`` in one column, within ``backward`` as an overlapped
            all-reduce ends, or ``untimed``.
        unfinished : ranks, optional
            Ranks with a row of the step that they did not finish.
        kept : ndarray of bool of shape (n_ranks, n_finished), optional
            Rows to write; all by default.
        load : mapping of column to ndarray of shape (n_ranks, n_steps), optional
            Samples, tokens and squared lengths.
        """
        n = self.finished
        job = self.job
        names = tuple(job.phase) if phases is None else phases
        columns = {f"{name}_seconds": job.phase[name][:, :n].copy() for name in names}
        exchange = self.wait + job.transfer
        if waiting == "split":
            columns["communication_wait_seconds"] = self.wait[:, :n]
            columns["communication_transfer_seconds"] = job.transfer[:, :n]
        elif waiting == "joint":
            columns["communication_seconds"] = exchange[:, :n]
        elif waiting == "backward":
            columns["backward_seconds"] = columns["backward_seconds"] + exchange[:, :n]
        columns["step_seconds"] = self.whole[:, :n]
        for name, values in (load or {}).items():
            columns[name] = values[:, :n]
        ahead = self.skew[np.arange(job.ranks) // job.per_node] if self.skew.size else np.zeros(job.ranks)
        keep = np.ones((job.ranks, n), dtype=bool) if kept is None else kept
        rank, step = (grid[keep] for grid in np.mgrid[0 : job.ranks, 0:n])
        values = {"start_time": (self.begin[:, :n] + ahead[:, None])[keep]}
        values |= {name: column[keep] for name, column in columns.items()}
        if unfinished is not None:
            extra = np.arange(job.ranks)[unfinished]
            rank, step = np.concatenate([rank, extra]), np.concatenate([step, np.full(extra.size, n)])
            began = (
                self.begin[extra, n] if n < job.steps else self.begin[extra, n - 1] + self.whole[extra, n - 1]
            )
            values = {
                name: np.concatenate([held, began if name == "start_time" else np.full(extra.size, np.nan)])
                for name, held in values.items()
            }
        if not rank.size:
            return None
        return pa.table({"rank": rank.astype(np.int32), "step": step + job.first_step, **values})

    def window(
        self,
        window_id: str,
        phases: tuple[str, ...] | None = None,
        *,
        metrics: pa.Table | None = None,
        events: list[dict[str, Any]] | None = None,
        with_steps: bool = True,
        **table: Any,
    ) -> Window:
        """The telemetry window with these tables; further arguments are those of `steps`."""
        steps = self.steps(phases, **table) if with_steps else None
        return Window.from_tables(self.document(window_id), steps, metrics, events)
