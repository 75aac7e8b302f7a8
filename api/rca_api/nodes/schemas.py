"""Schemas of `/v1/nodes`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rca_api.incidents.schemas import moment
from rca_api.nodes import fault_prior
from rca_api.nodes.repository import NodeRecord, Span


class Node(BaseModel):
    """Summary of a node over the jobs of the last 90 days."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "node": "node-12",
                    "lemon_probability": 0.96,
                    "is_lemon": True,
                    "jobs": 3,
                    "jobs_blamed": 2,
                    "independent_blames": 2,
                    "windows": 412,
                    "first_seen": "2026-11-02T08:00:00Z",
                    "last_seen": "2026-11-21T20:10:00Z",
                    "highest_seconds_per_step": 0.31,
                }
            ]
        }
    )

    node: str
    lemon_probability: float = Field(
        ge=0,
        le=1,
        description="Probability that the node has a fault of its own, given all jobs that ran on it.",
    )
    is_lemon: bool = Field(description=f"Whether `lemon_probability` is at least {fault_prior.THRESHOLD}.")
    jobs: int = Field(description="Jobs with a confident diagnosis about the node.")
    jobs_blamed: int = Field(description="Jobs that blamed the node for a cause that is not the workload's.")
    independent_blames: int = Field(
        description="As `jobs_blamed`, but jobs that blamed it within the same six hours count once."
    )
    windows: int = Field(description="Windows with a confident diagnosis about the node.")
    first_seen: datetime
    last_seen: datetime
    highest_seconds_per_step: float = Field(description="Highest cost that one diagnosis blamed on the node.")


class NodePage(BaseModel):
    """One page of nodes, highest lemon probability first."""

    items: list[Node]
    next: str | None


class NodeBlame(BaseModel):
    """One cause on the node in one diagnosis."""

    diagnosis_id: str
    incident_id: str | None
    job_id: str
    window_start: datetime
    window_end: datetime
    cause: str
    owner: Literal["infrastructure", "workload", "either"] = Field(
        description="`workload` does not count against the node."
    )
    probability: float
    seconds_per_step: float
    abstained: bool = Field(description="Whether the diagnosis abstained. It does not count then.")
    overruled: bool = Field(
        description="Whether feedback, not contradicted, gave another cause, which counts instead."
    )


class NodeHistory(BaseModel):
    """Blames of a node, newest first."""

    node: str
    summary: Node | None = Field(description="Null if no job of the last 90 days ran on it.")
    items: list[NodeBlame]
    next: str | None


def read_node(record: NodeRecord, span: Span, probability: float) -> Node:
    """Make the summary of a node."""
    return Node(
        node=record.node,
        lemon_probability=probability,
        is_lemon=probability >= fault_prior.THRESHOLD,
        jobs=record.jobs,
        jobs_blamed=len(fault_prior.blaming_jobs(record.blames)),
        independent_blames=len(fault_prior.independent_blames(record.blames)),
        windows=span.windows,
        first_seen=moment(span.first_seen),
        last_seen=moment(span.last_seen),
        highest_seconds_per_step=record.highest_seconds_per_step,
    )
