"""The format's tables as data: column names, types and what may be missing.

Validation, encodings and empty tables follow from these four specifications: a new column is one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa

#: Durations of a step's phases, seconds.
PHASES: tuple[str, ...] = (
    "data_loading_seconds",
    "host_to_device_seconds",
    "forward_seconds",
    "backward_seconds",
    "communication_wait_seconds",
    "communication_transfer_seconds",
    "communication_seconds",
    "optimizer_seconds",
    "checkpoint_seconds",
    "gc_seconds",
    "step_seconds",
)
#: How much work a step had.
#: Phases that most steps do not have; many trainers write them only in steps that have them.
OCCASIONAL_PHASES = frozenset({"checkpoint_seconds", "gc_seconds"})
STEADY_PHASES = tuple(name for name in PHASES if name not in OCCASIONAL_PHASES and name != "step_seconds")
LOAD_COLUMNS: tuple[str, ...] = ("samples", "tokens", "sum_squared_sequence_length")
Kind = Literal["integer", "number", "text"]
Presence = Literal["required", "filled", "optional"]

TEXT = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    type : pyarrow.DataType
        The type every validated window holds it in.
    presence : {"required", "filled", "optional"}
        A missing required column is an error. A missing filled one becomes all null. A missing
        optional one stays absent.
    nullable : bool
        Whether single values may be missing (null; NaN for numbers).
    non_negative : bool
        For durations and amounts of work.
    rank : bool
        A rank number, bounded by the world size.
    label : bool
        A text that names something, see `rca.window.names`.
    blank_is_null : bool
        Whether a blank text means that there is none.
    number_too : bool
        Whether a text may be given as a whole number, such as an exit code.
    """

    name: str
    type: pa.DataType
    presence: Presence = "required"
    nullable: bool = False
    non_negative: bool = False
    rank: bool = False
    label: bool = False
    blank_is_null: bool = False
    number_too: bool = False

    @cached_property
    def kind(self) -> Kind:
        if pa.types.is_dictionary(self.type):
            return "text"
        return "integer" if pa.types.is_integer(self.type) else "number"


@dataclass(frozen=True)
class TableSpec:
    """One table: its name, its columns in the format's order, and the ones that identify a row."""

    name: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        return {column.name: column for column in self.columns}

    def empty(self) -> pa.Table:
        """The table with no rows; optional columns are left out."""
        held = [column for column in self.columns if column.presence != "optional"]
        return pa.table({column.name: pa.array([], type=column.type) for column in held})


def _amount(name: str) -> Column:
    """A measured amount; only the step's own duration is required."""
    presence: Presence = "required" if name == "step_seconds" else "optional"
    return Column(name, pa.float64(), presence=presence, nullable=True, non_negative=True)


STEPS = TableSpec(
    "steps",
    (
        Column("rank", pa.int32(), rank=True),
        Column("step", pa.int64()),
        Column("start_time", pa.float64()),
        *(_amount(name) for name in PHASES),
        *(_amount(name) for name in LOAD_COLUMNS),
        # Number of the job's restart; see `rca.window.rows.attempts`.
        Column("attempt", pa.int64(), presence="optional", nullable=True, non_negative=True),
        # When a service received a row whose start_time was still to come; see `rca.window.step_times`.
        Column("received_time", pa.float64(), presence="optional", nullable=True),
    ),
    keys=("rank", "step"),
)
METRICS = TableSpec(
    "metrics",
    (
        Column("time", pa.float64()),
        Column("node", TEXT, presence="filled", nullable=True, label=True),
        Column("rank", pa.int32(), presence="filled", nullable=True, rank=True),
        Column("device", TEXT, presence="filled", nullable=True, label=True, blank_is_null=True),
        Column("name", TEXT, label=True),
        Column("value", pa.float64(), nullable=True),
    ),
    keys=("name", "node", "rank", "device"),
)
EVENTS = TableSpec(
    "events",
    (
        Column("time", pa.float64()),
        Column("node", TEXT, presence="filled", nullable=True, label=True),
        Column("rank", pa.int32(), presence="filled", nullable=True, rank=True),
        Column("kind", TEXT, label=True),
        Column("code", TEXT, presence="filled", nullable=True, number_too=True),
        Column("message", TEXT, presence="filled", nullable=True),
    ),
    keys=("kind", "node", "rank"),
)
OPS = TableSpec(
    "ops",
    (
        Column("rank", pa.int32(), rank=True),
        Column("dp_rank", pa.int32()),
        Column("stage", pa.int32()),
        Column("step", pa.int64()),
        Column("optype", TEXT, label=True),
        Column("seq_id", pa.int64()),
        Column("mc", pa.int32()),
        Column("gmc", pa.int32()),
        Column("mb_id", pa.int64()),
        Column("start_ts", pa.float64()),
        Column("duration", pa.float64(), non_negative=True),
    ),
    keys=("rank", "step", "optype", "seq_id"),
)
#: States of a member of a communication group: it waits in a collective, has finished all that it enqueued,
#: has a record without a collective of this group, or left no record.
MEMBER_STATES = ("waiting", "finished", "idle", "unrecorded")
#: Progress of each member of each communication group; only waiting and finished members have numbers.
COLLECTIVES = TableSpec(
    "collectives",
    (
        Column("rank", pa.int32(), rank=True),
        Column("group", TEXT, label=True),
        Column("state", TEXT),
        Column("sequence", pa.int64(), presence="filled", nullable=True),
        Column("waiting_since", pa.float64(), presence="filled", nullable=True),
        Column("operation", TEXT, presence="filled", nullable=True, label=True),
    ),
    keys=("rank", "group"),
)
#: What rows are: a whole window, of which the latest attempt counts; some of a running job, which are joined
#: with others; or such rows that were accepted before, and are not refused any more.
Scope = Literal["window", "fragment", "stored"]
#: A window has rows in at least one of these tables.
SUFFICIENT = ("steps", "metrics", "events", "collectives")
#: Columns of one table, unknown ones included.
MAX_COLUMNS = 1000
SPECS: Mapping[str, TableSpec] = {spec.name: spec for spec in (STEPS, METRICS, EVENTS, OPS, COLLECTIVES)}
