"""The file of `rca watch`: which jobs, from where, how often."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from rca.yaml_documents import read_document
from rca_api.watch.prometheus_access import PrometheusAccess, Span

MAX_JOBS = 256


class WatchedJob(PrometheusAccess):
    """One job: from a Prometheus server, a folder that a collector writes, or steps of one beside the other.

    Attributes
    ----------
    every : float or None
        Seconds between two diagnoses; None for that of the plan.
    since : float
        Seconds before now that a window from Prometheus covers.
    """

    job: str = Field(min_length=1, max_length=256)
    prometheus: str | None = None
    folder: Path | None = None
    namespace: str | None = None
    since: Span = 900.0
    every: Span | None = None

    @model_validator(mode="after")
    def _some_place(self) -> Self:
        if self.prometheus is None and self.folder is None:
            raise ValueError("needs prometheus, folder or both")
        return self


class WatchPlan(BaseModel):
    """All watched jobs.

    Attributes
    ----------
    service : str or None
        Base URL of a service that diagnoses the windows and opens incidents; None to diagnose here.
    every : float
        Seconds between two diagnoses of a job.
    state : Path or None
        File that remembers when each job was diagnosed; None for one beside the plan.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    service: str | None = None
    every: Span = 30.0
    state: Path | None = None
    jobs: tuple[WatchedJob, ...] = Field(min_length=1, max_length=MAX_JOBS)

    @model_validator(mode="after")
    def _distinct_jobs(self) -> Self:
        names = [job.job for job in self.jobs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the job {twice[0]!r} occurs twice")
        return self


def read_plan(path: Path) -> WatchPlan:
    """Read a plan; its relative paths count from its folder.

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        Naming the member that is wrong.
    """
    return _beside(read_document(path, WatchPlan, hint="`rca watch --help` shows a plan"), path)


def _beside(plan: WatchPlan, path: Path) -> WatchPlan:
    """The plan with absolute paths."""
    here = path.resolve().parent
    jobs = tuple(job.below(here, "folder") for job in plan.jobs)
    state = here / (plan.state or f".{path.stem}-state.json")
    return plan.model_copy(update={"jobs": jobs, "state": state})
