"""Windows from Prometheus of the jobs in a list, which a scheduler writes."""

from __future__ import annotations

import hashlib
import os
import re
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np

from rca.errors import InvalidInput, cut
from rca.sources.instants import text_of
from rca.sources.prometheus.credentials import split_address
from rca.sweep.archive import Found
from rca.sweep.tables import END, JOB, START, known, read_table, span_of
from rca.window.window import Window

#: Names of the steps of Slurm's jobs, such as ``4711.batch``: they are parts of the job.
_STEP = re.compile(r"\d+(?:[_+]\d+)?\.(?:batch|extern|interactive|\d+)")
#: A rest of a job that is shorter than this share of a span belongs to the span before it.
SHORT_REST = 0.5
#: A span is read this long after its end, so that all samples have arrived, seconds.
SETTLED_SECONDS = 60.0


@dataclass(frozen=True)
class JobSpan:
    """A job of a list.

    Attributes
    ----------
    start, end : float, Unix seconds
        `end` is None while the job runs.
    """

    job: str
    start: float
    end: float | None


@dataclass(frozen=True)
class JobWindow(Found):
    """A span of a job that was not yet read from Prometheus.

    Its URL is address, job and start. Its version is a digest of the end and of what selects the samples.

    Attributes
    ----------
    start, end : float, Unix seconds
    reading : callable
        `rca.sources.prometheus.window.read_prometheus` with everything but the job and the times.
    """

    job: str
    start: float
    end: float
    reading: partial[Window] = field(repr=False)

    def read(self) -> Window:
        """The window; errors as of `read_prometheus`."""
        return self.reading(self.job, start=self.start, end=self.end)


def read_jobs(path: str | os.PathLike[str]) -> tuple[list[JobSpan], int]:
    """The jobs of a table with the columns job, start and end, as schedulers write it.

    Parameters
    ----------
    path : path
        See `rca.sweep.tables.read_table`. Times are RFC 3339 or Unix seconds.

    Returns
    -------
    list of JobSpan
    int
        Lines left out: jobs that have not run, and steps of Slurm's jobs.

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        If a column or a job is missing, or a time is none.
    """
    lines = read_table(path, {"job": JOB, "start": START, "end": END}, _span)
    found = [span for span in lines if span is not None]
    return found, len(lines) - len(found)


def _span(_: str, values: dict[str, str]) -> JobSpan | None:
    if not known(values["job"]):
        raise InvalidInput("a job has no name")
    if _STEP.fullmatch(values["job"]) or not known(values["start"]):
        return None
    start, end = span_of(values, f"the job {cut(values['job'])}")
    return None if start == end else JobSpan(values["job"], start, end)


def job_windows(
    jobs: Iterable[JobSpan], *, every: float, reading: partial[Window], now: float
) -> list[JobWindow]:
    """Spans of jobs that are over, each once, sorted by job and time.

    Parameters
    ----------
    every : float, seconds
        Length of a span, counted from the start of the job. A short rest belongs to the last one.
    reading : callable
        See `JobWindow`; its first argument is the address of the server.
    now : float, Unix seconds
        Spans that end later are left out, and so is the last one of a job that runs.

    Raises
    ------
    InvalidInput
        If the address is none, or `every` is not above 0.
    """
    if not every > 0.0:
        raise InvalidInput(f"spans of {every:g} s cannot be read", hint="give --every 30m")
    address, _, _ = split_address(str(reading.args[0]))
    chosen = {name: reading.keywords.get(name) for name in ("labels", "namespace", "matchers")}
    chosen["headers"] = {
        name.lower(): value
        for name, value in (reading.keywords.get("headers") or {}).items()
        if name.lower() != "authorization"
    }
    selection = sorted(chosen.items())
    namespace = chosen["namespace"]
    place = {"namespace": namespace} if namespace else {}
    found = {}
    # Lines of the same name and start are one job, up to the latest end that is known.
    ends: dict[tuple[str, float], list[float]] = {}
    for job in jobs:
        ends.setdefault((job.job, job.start), []).extend([] if job.end is None else [job.end])
    for (name, begin), known_ends in ends.items():
        job = JobSpan(name, begin, max(known_ends, default=None))
        for start, end in _spans(job, every, now - SETTLED_SECONDS):
            query = urllib.parse.urlencode({"job": job.job, **place, "start": text_of(start)})
            url = f"{address}/?{query}"
            version = hashlib.sha256(repr((end, selection)).encode()).hexdigest()[:32]
            found[url] = JobWindow(url, version, 0, job.job, start, end, reading)
    return [found[url] for url in sorted(found)]


def _spans(job: JobSpan, every: float, until: float) -> Sequence[tuple[float, float]]:
    if job.end is None or job.end > until:
        edges = np.arange(job.start, until, every)
        return list(pairwise(edges.tolist()))
    edges = np.arange(job.start, job.end, every)
    if edges.size > 1 and job.end - edges[-1] < SHORT_REST * every:
        edges = edges[:-1]
    return list(pairwise([*edges.tolist(), job.end]))
