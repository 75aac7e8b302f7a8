"""Read the stored telemetry of a job: the newest steps in short, or all rows of some steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from rca.arrays import IntArray
from rca.errors import TooLarge
from rca.window.encodings import arrow
from rca.window.encodings.document import Decoded
from rca.window.fragments import current_steps, joined, joined_rows, numbered
from rca.window.job import RankPlace
from rca.window.memory import WindowCounts, refuse_beyond
from rca.window.names import accepted_before
from rca.window.schema import LOAD_COLUMNS, PHASES, STEPS
from rca.window.window import Window
from rca_api.shell.processes.process import Context

#: Steps that a look at a job reads: at most, and at least; large jobs fewer.
MAX_STEPS_LOOKED_AT, MIN_STEPS_LOOKED_AT = 400, 120
#: Rows of steps that a look reads.
ROWS_LOOKED_AT = 2_000_000
#: Ranks that are more steps behind the first one are not waited for.
MAX_STEPS_BEHIND = 50
#: Memory of a look per row of a step, bytes: its columns as rows and as arrays, and the rank's own work.
BYTES_PER_ROW = 480
#: Fewer steps are not worth a diagnosis.
MIN_STEPS_DIAGNOSED = 20
#: Copies of all rows while fragments are joined: read, joined, without repetitions, validated.
COPIES = 4
#: Segments of so many bytes at most stay decoded in a process, because each look at their job reads them.
MAX_HELD_BYTES = 32 << 10
#: A job without steps: seconds that a look reads.
SECONDS_LOOKED_AT = 1800.0
_SHORT = ("rank", "step", "attempt", "start_time", "received_time", *PHASES)


@dataclass(frozen=True)
class NewestSteps:
    """The newest steps of a job in short: without their load, and without metrics and events.

    Attributes
    ----------
    window : Window
        Of the latest attempt, with the times of one clock per rank. It has no other tables.
    nodes : mapping of int to str
        Node of each rank, as far as the segments that were read name it.
    remarks : tuple of str
        What is left out or moved.
    digests : tuple of str
        Segments that hold the steps, in the order of arrival.
    numbers : ndarray of shape (n_steps,), int
        Their distinct step numbers, ascending.
    n_fitting : int
        Steps of all ranks that a diagnosis has memory for.
    """

    window: Window
    nodes: Mapping[int, str]
    remarks: tuple[str, ...]
    digests: tuple[str, ...]
    numbers: IntArray
    n_fitting: int


def newest_steps(context: Context, digests: Sequence[str]) -> NewestSteps | None:
    """Read segments from the newest to the oldest until they hold the steps of a look; None without steps.

    Raises
    ------
    TooLarge
        If a diagnosis has no memory for `MIN_STEPS_DIAGNOSED` steps of all ranks.
    """
    limit = context.max_memory_bytes
    parts: list[pa.Table] = []
    job: dict[str, Any] = {}
    nodes: dict[int, str] = {}
    n_read = n_rows = world_size = looked_at = 0
    shape = _Shape()
    for digest in reversed(digests):
        decoded = _read(context, digest)
        n_read += 1
        steps = decoded.tables.get("steps")
        if steps is None:
            continue
        places: Any = decoded.job.get("ranks") or ()
        nodes = {place["rank"]: place["node"] for place in places if place.get("node")} | nodes
        if not parts:
            job = {name: value for name, value in decoded.job.items() if name != "ranks"}
            world_size = int(job["world_size"])
            looked_at = _steps_looked_at(world_size, limit)
        shape = shape.with_steps(steps)
        if limit is not None:
            refuse_beyond(limit, shape.memory(world_size, MIN_STEPS_DIAGNOSED), f"{world_size:,} ranks")
        parts.append(steps.select([name for name in _SHORT if name in steps.column_names]))
        n_rows += steps.num_rows
        full = limit is not None and n_rows * BYTES_PER_ROW > limit
        if full or n_rows >= world_size * (looked_at + MAX_STEPS_BEHIND):
            break
    if not parts:
        return None
    steps, remarks = current_steps(joined_rows(parts[::-1], STEPS))
    number = steps.column("step").to_numpy()
    numbers = np.unique(number)
    if numbers.size > looked_at:
        numbers = numbers[-looked_at:]
        steps = steps.filter(pa.array(number >= numbers[0]))
    fitting = numbers.size if limit is None else shape.fitting(world_size, limit)
    with accepted_before():
        window = Window.from_tables(job, steps, scope="stored")
    return NewestSteps(window, nodes, tuple(remarks), tuple(digests[-n_read:]), numbers, fitting)


def gathered(
    context: Context, digests: Sequence[str], first: int | None = None, last: int | None = None
) -> Window:
    """All rows of segments, joined; of their steps those from `first` to `last`.

    Raises
    ------
    TooLarge
        If they need too much memory.
    """
    window, n_read = _joined(context, digests, newest_first=True, first=first, last=last)
    if n_read < len(digests):
        raise TooLarge(
            f"the telemetry of this time has more than {(context.max_memory_bytes or 0) // COPIES:,} bytes",
            hint="name a shorter time with since and until",
        )
    return window


def newest_gathered(context: Context, digests: Sequence[str]) -> Window:
    """The rows of the newest segments, as many as memory and `SECONDS_LOOKED_AT` allow."""
    return _joined(context, digests, newest_first=True, seconds=SECONDS_LOOKED_AT)[0]


def oldest_gathered(context: Context, digests: Sequence[str]) -> tuple[Window, list[str]]:
    """The rows of the oldest segments, as many as memory allows, and which segments these are."""
    window, n_read = _joined(context, digests, newest_first=False)
    return window, list(digests[:n_read])


def _joined(
    context: Context,
    digests: Sequence[str],
    *,
    newest_first: bool,
    first: int | None = None,
    last: int | None = None,
    seconds: float | None = None,
) -> tuple[Window, int]:
    """Read segments as memory allows, at least one, and join them; gives how many were read as well."""
    fragments: list[Window] = []
    places: dict[int, Any] = {}
    n_bytes = 0
    for digest in reversed(digests) if newest_first else digests:
        decoded = _read(context, digest)
        job, tables = dict(decoded.job), dict(decoded.tables)
        # Each fragment may list all ranks of the job: they are held once, as the newest one has them.
        ranks: Any = job.pop("ranks", ())
        listed = {place["rank"]: place for place in ranks}
        places = {**listed, **places} if newest_first else {**places, **listed}
        if "steps" in tables:
            tables["steps"] = numbered(tables["steps"], first, last)
        n_bytes += sum(table.nbytes for table in tables.values())
        full = context.max_memory_bytes is not None and COPIES * n_bytes > context.max_memory_bytes
        with accepted_before():
            fragment = Window.from_tables(job, **tables, scope="stored")
        old = seconds is not None and fragments and fragment.job.end < fragments[0].job.end - seconds
        if fragments and (full or old):
            break
        fragments.append(fragment)
    with accepted_before():
        window = joined(fragments[::-1] if newest_first else fragments)
        ranks = tuple(RankPlace.model_validate(places[rank]) for rank in sorted(places))
    if places:
        window = replace(window, job=window.job.model_copy(update={"ranks": ranks}))
    return window, len(fragments)


def _read(context: Context, digest: str) -> Decoded:
    decoded = context.segments.get(digest)
    if decoded is None:
        body = context.windows.read(digest)
        with accepted_before():
            decoded = arrow.decode(body, arrow.CONTENT_TYPE)
        if len(body) <= MAX_HELD_BYTES:
            context.segments.hold(digest, decoded)
    return decoded


@dataclass(frozen=True)
class _Shape:
    """What decides the memory of a diagnosis beside the numbers of ranks and steps."""

    columns: int = 0
    row_bytes: float = 0.0

    def with_steps(self, steps: pa.Table) -> _Shape:
        """The larger of both."""
        columns = sum(name in PHASES or name in LOAD_COLUMNS for name in steps.column_names)
        return _Shape(max(self.columns, columns), max(self.row_bytes, steps.nbytes / steps.num_rows))

    def memory(self, ranks: int, steps: int) -> int:
        """Bytes that a diagnosis takes, and joining its rows, without metrics and events."""
        table_bytes = int(self.row_bytes * ranks * steps)
        counts = WindowCounts(
            ranks=ranks, steps=steps, columns=self.columns, channels=0, samples=0, series=0, longest=0,
            in_order=True, texts=0, places=ranks, events=0, table_bytes=table_bytes,
        )  # fmt: skip
        return max(counts.memory(), COPIES * table_bytes)

    def fitting(self, ranks: int, limit: int) -> int:
        """Steps of all ranks that a diagnosis has memory for."""
        few, more = (self.memory(ranks, steps) for steps in (MIN_STEPS_DIAGNOSED, 2 * MIN_STEPS_DIAGNOSED))
        return MIN_STEPS_DIAGNOSED + int(MIN_STEPS_DIAGNOSED * (limit - few) / (more - few))


def _steps_looked_at(world_size: int, limit: int | None) -> int:
    steps = max(MIN_STEPS_LOOKED_AT, min(MAX_STEPS_LOOKED_AT, ROWS_LOOKED_AT // world_size))
    return steps if limit is None else min(steps, limit // (BYTES_PER_ROW * world_size))
