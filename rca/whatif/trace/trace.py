"""An operation trace in memory (one row per operation, columns as arrays) and its job sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rca.arrays import BoolArray, IntArray, Seconds32
from rca.errors import InvalidInput, InvalidTrace
from rca.window.job import Job
from rca.yaml_documents import read_document


class TraceMeta(BaseModel):
    """Sizes of the parallel dimensions, named as in the public metadata files; None if absent.

    Attributes
    ----------
    dp_size, pp_size, tp_size, dsp_size, vpp_size : int or None
        Data, pipeline, tensor, context ("distributed sequence") and virtual pipeline sizes.
    world_size : int or None
        GPUs of the job, for the GPU hours.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)

    trial_name: str | None = None
    run_id: int | str | None = None
    dp_size: int | None = Field(default=None, ge=1)
    pp_size: int | None = Field(default=None, ge=1)
    tp_size: int | None = Field(default=None, ge=1)
    dsp_size: int | None = Field(default=None, ge=1)
    vpp_size: int | None = Field(default=None, ge=1)
    world_size: int | None = Field(default=None, ge=1)

    @classmethod
    def of(cls, source: TraceMeta | Mapping[str, Any] | str | PathLike[str] | None) -> TraceMeta:
        """Metadata from a mapping, a YAML file or None.

        Raises
        ------
        InvalidTrace
            If the file is no YAML, or a size is not a positive integer.
        SourceError
            If the file cannot be read.
        """
        if isinstance(source, TraceMeta):
            return source
        if source is None:
            return cls()
        if not isinstance(source, Mapping):
            return _read(source)
        try:
            return cls.model_validate(dict(source))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise InvalidTrace(f"job metadata: {field}: {first['msg']}") from error

    @classmethod
    def of_job(cls, job: Job) -> TraceMeta:
        """Metadata from the job of a window."""
        sizes = job.parallelism
        if sizes is None:
            return cls(trial_name=job.job_id, world_size=job.world_size)
        return cls(
            trial_name=job.job_id,
            dp_size=sizes.data,
            pp_size=sizes.pipeline,
            tp_size=sizes.tensor,
            dsp_size=sizes.context,
            vpp_size=sizes.virtual_pipeline,
            world_size=job.world_size,
        )


def _read(path: str | PathLike[str]) -> TraceMeta:
    """Metadata from a YAML file."""
    try:
        return read_document(path, TraceMeta, hint="the sizes of the job: dp_size: 8, pp_size: 4, tp_size: 2")
    except InvalidInput as error:
        raise InvalidTrace(f"job metadata {error}", hint=error.hint) from None


@dataclass(frozen=True)
class Note:
    """A remark on rows of a trace.

    Attributes
    ----------
    pieces : tuple of str or int
        The text. Its numbers are counts of rows, which add up over the parts of a trace.
    first : int or None
        Number of the first row.
    """

    pieces: tuple[str | int, ...]
    first: int | None = None

    def __str__(self) -> str:
        text = "".join(map(str, self.pieces))
        return text if self.first is None else f"{text}, the first is row {self.first}"

    @property
    def kind(self) -> tuple[str, ...]:
        """What it says without its numbers. Notes of one kind can be added."""
        return tuple(piece if isinstance(piece, str) else "" for piece in self.pieces)

    def plus(self, other: Note) -> Note:
        """The note on both parts."""
        added = (
            mine if isinstance(mine, str) or isinstance(theirs, str) else mine + theirs
            for mine, theirs in zip(self.pieces, other.pieces, strict=True)
        )
        known = [note.first for note in (self, other) if note.first is not None]
        return Note(tuple(added), min(known, default=None))


@dataclass(frozen=True)
class OpTrace:
    """Checked rows of known operation types.

    Attributes
    ----------
    data_rank, stage, rank, step, optype, sequence, chunk, global_chunk, microbatch : ndarray of (n_ops,), int
        `optype` is a code of `rca.whatif.optypes`; `data_rank` counts 0 .. D-1 (see `data_ranks`).
    start, duration : ndarray of shape (n_ops,), float32, seconds
        `start` is relative to the first start of the step. Both are in single precision, because the
        public format and the published results are.
    data_ranks : ndarray of shape (D,), int
        Numbers of the data ranks in the file.
    notes : tuple of Note
        Repairs, dropped rows and assumptions, with counts.
    """

    data_rank: IntArray
    stage: IntArray
    rank: IntArray
    step: IntArray
    optype: IntArray
    sequence: IntArray
    chunk: IntArray
    global_chunk: IntArray
    microbatch: IntArray
    start: Seconds32
    duration: Seconds32
    data_ranks: IntArray
    meta: TraceMeta
    notes: tuple[Note, ...] = ()

    @property
    def n_ops(self) -> int:
        return int(self.start.size)

    @property
    def n_data(self) -> int:
        return int(self.data_ranks.size)

    @property
    def n_stages(self) -> int:
        return int(self.stage.max()) + 1

    def rows(self, chosen: BoolArray | IntArray, *notes: Note) -> OpTrace:
        """A trace of the chosen rows, with notes added."""
        columns = {name: getattr(self, name)[chosen] for name in ROW_COLUMNS}
        return replace(self, **columns, notes=self.notes + notes)

    def noted(self, *notes: str | Note) -> OpTrace:
        """The trace with notes added; texts are those without counts."""
        added = tuple(Note((note,)) if isinstance(note, str) else note for note in notes)
        return replace(self, notes=self.notes + added)


def distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """Ascending distinct values, and the position of each value among them.

    The result equals that of `numpy.unique`. Dense values, such as step numbers, are not sorted.
    """
    if not values.size or int(values.max()) - int(values.min()) >= values.size:
        found, index = np.unique(values, return_inverse=True)
        return found, index.astype(np.int64, copy=False)
    low = values.min()
    offset = values - low
    present = np.bincount(offset) > 0
    return np.flatnonzero(present) + low, (np.cumsum(present) - 1)[offset]


ROW_COLUMNS: tuple[str, ...] = (
    "data_rank",
    "stage",
    "rank",
    "step",
    "optype",
    "sequence",
    "chunk",
    "global_chunk",
    "microbatch",
    "start",
    "duration",
)
