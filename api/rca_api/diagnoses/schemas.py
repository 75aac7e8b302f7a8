"""Schemas of posted windows and of stored diagnoses.

The models of a window describe the JSON encoding for readers and client generators. Bodies are not parsed
through them. `rca.window` reads columns into arrays and reports wrong rows a hundred times faster.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from rca.diagnosis.result import Diagnosis, Verdict
from rca.window.causes import FailureMode
from rca.window.job import Job
from rca.window.names import Name
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.shell.store.base import values_of

Seconds = Annotated[float, Field(ge=0)]
Durations = list[Seconds | None] | None
EXAMPLE: JsonDict = {
    "job": {
        "format": 1,
        "job_id": "llama-7b-17",
        "world_size": 2,
        "parallelism": {"data": 2},
        "ranks": [{"rank": 0, "node": "node-0"}, {"rank": 1, "node": "node-1"}],
        "start": 1795254860.0,
        "end": 1795254861.0,
    },
    "steps": {
        "rank": [0, 1, 0, 1],
        "step": [10, 10, 11, 11],
        "start_time": [1795254860.1, 1795254860.1, 1795254860.3, 1795254860.3],
        "forward_seconds": [0.05, 0.05, 0.05, 0.07],
        "backward_seconds": [0.1, 0.1, 0.1, 0.1],
        "communication_wait_seconds": [0.001, 0.001, 0.021, 0.001],
        "step_seconds": [0.2, 0.2, 0.22, 0.22],
    },
    "metrics": [
        {
            "name": "DCGM_FI_DEV_SM_CLOCK",
            "node": "node-1",
            "rank": 1,
            "device": "0",
            "times": [1795254860.0, 1795254860.5],
            "values": [1755, 1410],
        }
    ],
}


class StepsColumns(BaseModel):
    """One row per rank and training step, by column; all columns have the same length."""

    model_config = ConfigDict(extra="allow")

    rank: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    step: list[int] = Field(min_length=1)
    start_time: list[float] = Field(min_length=1, description="Unix seconds, on the rank's own clock.")
    step_seconds: list[Seconds | None] = Field(
        min_length=1, description="Whole step; null only for a step that did not finish."
    )
    data_loading_seconds: Durations = None
    host_to_device_seconds: Durations = None
    forward_seconds: Durations = None
    backward_seconds: Durations = None
    communication_wait_seconds: Durations = Field(
        None, description="From this rank's arrival at the collectives to the arrival of the last member."
    )
    communication_transfer_seconds: Durations = Field(
        None, description="From the last arrival until this rank has finished."
    )
    communication_seconds: Durations = Field(
        None, description="Wait and transfer together, if they cannot be separated."
    )
    optimizer_seconds: Durations = None
    checkpoint_seconds: Durations = None
    gc_seconds: Durations = None
    samples: list[float | None] | None = None
    tokens: list[float | None] | None = None
    sum_squared_sequence_length: list[float | None] | None = None
    attempt: list[int | None] | None = Field(
        None, description="Number of the job's restart. Of each rank and step the latest attempt counts."
    )


class MetricSeries(BaseModel):
    """Samples of one exporter metric, of a rank, or of a node if `rank` is null."""

    name: Name = Field(description="The exporter's own name, unchanged; counters stay cumulative.")
    node: Name | None = None
    rank: Annotated[int, Field(ge=0)] | None = None
    device: Name | None = None
    times: list[float] = Field(description="Unix seconds.")
    values: list[float | None]


class WindowEvent(BaseModel):
    """An event on a node or rank."""

    time: float
    node: Name | None = None
    rank: Annotated[int, Field(ge=0)] | None = None
    kind: Name
    code: str | None = None
    message: str | None = None


class OperationColumns(BaseModel):
    """Operation-level trace, by column."""

    model_config = ConfigDict(extra="allow")

    rank: list[int] | None = None
    dp_rank: list[int] | None = None
    stage: list[int] | None = None
    step: list[int] | None = None
    optype: list[Name] | None = None
    start_ts: list[float] | None = None
    duration: list[Seconds] | None = None


class CollectiveColumns(BaseModel):
    """Progress of each member of each communication group, by column."""

    rank: list[Annotated[int, Field(ge=0)]]
    group: list[Name]
    state: list[Literal["waiting", "finished", "idle", "unrecorded"]]
    sequence: list[int | None] | None = Field(
        None, description="Number of the last collective that the member enqueued in the group."
    )
    waiting_since: list[float | None] | None = Field(None, description="Unix seconds.")
    operation: list[Name | None] | None = None


class TelemetryWindow(BaseModel):
    """A telemetry window, format 1: timings of one job's ranks and metrics of their machines.

    ``null`` means "not measured". A step needs only `rank`, `step`, `start_time` and `step_seconds`. A
    diagnosis lists the missing signals. Without `steps`, `collectives` show who stopped a job, and `metrics`
    which machine stands out.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    job: Job
    steps: StepsColumns | None = None
    metrics: list[MetricSeries] | None = None
    events: list[WindowEvent] | None = None
    ops: OperationColumns | None = None
    collectives: CollectiveColumns | None = None


class ArrowWindow(BaseModel):
    """The Arrow encoding: one part per table, each an Arrow IPC stream, and the job as JSON."""

    job: Job = Field(description="Part of type application/json.")
    steps: bytes | None = Field(
        None, json_schema_extra={"contentMediaType": "application/vnd.apache.arrow.stream"}
    )
    metrics: bytes | None = None
    events: bytes | None = None
    ops: bytes | None = None
    collectives: bytes | None = None


class WindowBatch(BaseModel):
    """Several windows. In multipart, each is a part named `window`: JSON, or a complete Arrow encoding."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"windows": [EXAMPLE]}]})

    windows: list[TelemetryWindow] = Field(min_length=1)


State = Literal["queued", "running", "done", "failed"]


class PendingDiagnosis(BaseModel):
    """A diagnosis that is not finished; poll its address."""

    diagnosis_id: str
    state: Literal["queued", "running"]
    created_at: datetime
    job_id: str
    window_id: str | None
    problem: dict[str, Any] | None = Field(
        None, description="Problem document of the last attempt, if it failed and is repeated."
    )


class BatchItem(BaseModel):
    """Answer to one window; items are in the order of the batch."""

    status: int = Field(description="HTTP status, as of a request with this window alone.")
    location: str | None = None
    diagnosis: Diagnosis | PendingDiagnosis | None = None
    problem: dict[str, Any] | None = Field(None, description="A problem document.")


class BatchAnswer(BaseModel):
    """One item per window."""

    items: list[BatchItem]


class DiagnosisSummary(BaseModel):
    """A diagnosis in a list; all of it is at `/v1/diagnoses/{diagnosis_id}`."""

    diagnosis_id: str
    state: State
    created_at: datetime
    finished_at: datetime | None
    job_id: str
    window_id: str | None
    window_digest: str | None = Field(description="Null once retention has deleted the window.")
    window_start: float = Field(description="Unix seconds.")
    window_end: float
    verdict: Verdict | None = Field(description="The failure mode, or undecided if the diagnosis abstained.")
    failure_mode: FailureMode | None
    abstained: bool | None
    cause: str | None = Field(description="The cause that costs most.")
    seconds_per_step: float | None = Field(description="Null where the cost is unknown.")
    model_sha256: str | None
    problem: dict[str, Any] | None = Field(
        description="Problem document of a failed diagnosis, or of the last attempt of one that is repeated."
    )

    @classmethod
    def of(cls, row: DiagnosisRow) -> Self:
        """Summarize a stored diagnosis."""
        problem = orjson.loads(row.problem) if row.problem is not None else None
        verdict = None if row.failure_mode is None else "undecided" if row.abstained else row.failure_mode
        found = {"diagnosis_id": row.id, "problem": problem, "verdict": verdict}
        return cls.model_validate(values_of(cls, row) | found)


class DiagnosisList(BaseModel):
    """One page, newest first."""

    items: list[DiagnosisSummary]
    next: str | None = Field(description="Cursor of the next page; null on the last.")
