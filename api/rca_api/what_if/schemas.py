"""The schema of a what-if answer, which `rca.whatif` writes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from rca.whatif.analysis import MAX_SCENARIOS
from rca.whatif.scenario import Scenario

Slowdowns = dict[str, float]


class WorkerSlowdown(BaseModel):
    """Slowdown by one worker, with all others ideal."""

    rank: int
    data_rank: int
    stage: int
    slowdown: float | None = Field(description="S_w, exact.")
    published_slowdown: float | None = Field(
        description="The published approximation: the smaller of those of its data rank and stage."
    )


class ExplainedShare(BaseModel):
    """Share of the slowdown that a set of workers causes; null if there is no slowdown."""

    published: float | None
    exact: float | None
    ranks: list[int]


class PatternFound(BaseModel):
    """A named pattern with its evidence."""

    pattern: Literal["worker", "stage", "sequence_length", "garbage_collection"]
    ranks: list[int]
    share: float
    seconds_per_step: float
    evidence: dict[str, float]
    text: str


class ScenarioOutcome(BaseModel):
    """Effect of one scenario, mean over the replayed steps; null if it cannot be computed."""

    name: str
    step_seconds: float | None
    seconds_saved_per_step: float | None = Field(description="Negative if the scenario costs time.")
    speedup: float | None = Field(description="Present step time divided by that of the scenario.")
    share_of_loss: float | None = Field(description="Share of the seconds lost to stragglers.")


class AskedScenarios(BaseModel):
    """Scenarios sent with a window."""

    scenarios: list[Scenario] | None = Field(None, max_length=MAX_SCENARIOS)


class TraceWithScenarios(AskedScenarios):
    """A bare operation trace and scenarios, as parts of a multipart body."""

    trace: bytes = Field(json_schema_extra={"contentMediaType": "application/vnd.apache.parquet"})


class StepTimes(BaseModel):
    """Values per training step, by column; absent with `per_step=false`."""

    step: list[int]
    measured_seconds: list[float]
    no_delay_seconds: list[float]
    ideal_seconds: list[float]
    slowdown: list[float]
    by_type: dict[str, list[float]]
    by_stage: dict[str, list[float]]
    by_data_rank: dict[str, list[float]]
    by_worker: dict[str, list[float | None]] | None = Field(
        None, description="Exact slowdown of each worker (by rank) in each step; with `worker_steps=true`."
    )


class WhatIfAnswer(BaseModel):
    """How much faster the job would be without stragglers, and the cost of each type, stage and worker."""

    format: Literal[1]
    source: Literal["operations", "phases"]
    job: dict[str, str | int]
    slowdown: float = Field(description="S: replayed step time divided by ideal step time.")
    waste: float = Field(description="1 - 1 / S.")
    seconds_lost_per_step: float
    gpu_hours_lost: float
    launch_slowdown: float
    fidelity: float = Field(description="Relative error of the replay against the measured step time.")
    by_type: Slowdowns
    by_data_rank: Slowdowns
    by_stage: Slowdowns
    workers: list[WorkerSlowdown]
    m_w: ExplainedShare
    m_s: ExplainedShare
    findings: list[PatternFound]
    intervals: dict[str, tuple[float, float]] = Field(description="90 % bootstrap intervals over steps.")
    warnings: list[str]
    notes: list[str]
    steps: StepTimes | None = None
    scenarios: list[ScenarioOutcome] | None = Field(
        None, description="One per scenario, in the order sent; absent if none were sent."
    )
