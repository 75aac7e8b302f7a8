"""The file of `rca watch`: which jobs, from where, how often."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self

import structlog
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from rca.errors import InvalidInput, cut
from rca.sources.prometheus.job_names import job_id
from rca.yaml_documents import read_document
from rca_api.watch.prometheus_access import PrometheusAccess, Span

_log = structlog.stdlib.get_logger("rca_api.watch")
MAX_JOBS, MAX_NAME_LENGTH = 256, 256
#: Selected jobs have reported in so many last seconds.
LOOKED_BACK = 300.0


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


class WatchedJob(PrometheusAccess):
    """One job: from a Prometheus server, a folder that a collector writes, or steps of one beside the other.

    Attributes
    ----------
    every : float or None
        Seconds between two diagnoses; None for that of the plan.
    match : tuple of str
        Matchers that every series has to meet.
    since : float
        Seconds before now that a window from Prometheus covers.
    """

    job: str = Field(min_length=1, max_length=MAX_NAME_LENGTH)
    prometheus: str | None = None
    folder: Path | None = None
    namespace: str | None = None
    match: tuple[str, ...] = ()
    since: Span = 900.0
    every: Span | None = None

    @property
    def id(self) -> str:
        """Id of the job in the windows from Prometheus."""
        return job_id(self.job, self.namespace)

    @model_validator(mode="after")
    def _some_place(self) -> Self:
        if self.prometheus is None and self.folder is None:
            raise ValueError("needs prometheus, folder or both")
        return self


class JobSelection(PrometheusAccess):
    """Every job of a Prometheus server, as far as they are selected; those that begin later are watched too.

    Attributes
    ----------
    jobs : str
        Regular expression that the whole name of a job has to meet.
    namespace, match, since, every
        As of `WatchedJob`.
    """

    prometheus: str = Field(min_length=1)
    jobs: Annotated[str, AfterValidator(_pattern)] = ".*"
    namespace: str | None = None
    match: tuple[str, ...] = ()
    since: Span = 900.0
    every: Span | None = None

    def present(self) -> list[WatchedJob]:
        """The jobs that report now.

        Raises
        ------
        InvalidInput
            If they are more than `MAX_JOBS`.
        SourceError
            As `rca.sources.prometheus.job_list.read_jobs`.
        """
        found = self.find_jobs(
            self.prometheus, since=LOOKED_BACK, namespace=self.namespace, matchers=self.match
        )
        chosen = [each.job for each in found if re.fullmatch(self.jobs, each.job.name)]
        long = [job.name for job in chosen if len(job_id(job.name, job.namespace)) > MAX_NAME_LENGTH]
        if long:
            _log.warning("jobs with longer names are not watched", jobs=len(long), first=cut(long[0]))
        chosen = [job for job in chosen if job.name not in long]
        if len(chosen) > MAX_JOBS:
            raise InvalidInput(
                f"{len(chosen)} jobs of {self.prometheus} are selected; the limit is {MAX_JOBS}",
                hint="select fewer by `jobs`, `namespace` or `match`",
            )
        more = self.model_dump(exclude={"jobs", "namespace"})
        return [
            WatchedJob(job=job.name, **{**more, "namespace": job.namespace or self.namespace})
            for job in chosen
        ]


class WatchPlan(BaseModel):
    """All watched jobs.

    Attributes
    ----------
    service : str or None
        Base URL of a service that diagnoses the windows and opens incidents; None to diagnose here.
    every : float
        Seconds between two diagnoses of a job.
    jobs : tuple of WatchedJob
        Listed one by one.
    select : tuple of JobSelection
        Those that servers have.
    state : Path or None
        File that remembers when each job was diagnosed; None for one beside the plan.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    service: str | None = None
    every: Span = 30.0
    state: Path | None = None
    jobs: tuple[WatchedJob, ...] = Field((), max_length=MAX_JOBS)
    select: tuple[JobSelection, ...] = Field((), max_length=MAX_JOBS)

    @model_validator(mode="after")
    def _distinct_jobs(self) -> Self:
        if not self.jobs and not self.select:
            raise ValueError("needs jobs, or select with a Prometheus server")
        names = [job.id for job in self.jobs]
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
    select = tuple(each.below(here) for each in plan.select)
    state = here / (plan.state or f".{path.stem}-state.json")
    return plan.model_copy(update={"jobs": jobs, "select": select, "state": state})
