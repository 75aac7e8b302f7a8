"""The file of `RCA_SOURCES`: from which Prometheus server the window of an alert's job comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rca.errors import InvalidInput
from rca.window.window import Window
from rca.yaml_documents import read_document
from rca_api.watch.prometheus_access import PrometheusAccess, Span

#: Labels that name the job of an alert, in this order. `job` is not one: it names the scrape.
JOB_LABELS = (
    "job_id",
    "job_name",
    "slurm_job_id",
    "label_training_kubeflow_org_job_name",
    "label_batch_kubernetes_io_job_name",
)
#: At most a day.
WindowSpan = Annotated[Span, Field(le=86_400)]


class PrometheusSource(PrometheusAccess):
    """One Prometheus server, and the alerts whose jobs it has series of.

    Attributes
    ----------
    match : dict of str to str
        Labels and values that an alert must have.
    job_labels : tuple of str
        Labels of an alert that name the job; the first one that it has.
    namespace_label : str
        Label of an alert that names the namespace of the job's pods.
    since : float
        Seconds before the begin of the alert at which the window begins.
    most : float
        Longest window, seconds. It ends now.
    """

    url: str = Field(min_length=1)
    match: dict[str, str] = Field(default_factory=dict)
    job_labels: tuple[str, ...] = Field(JOB_LABELS, min_length=1)
    namespace_label: str = "namespace"
    since: WindowSpan = 900.0
    most: WindowSpan = 3600.0

    def job_of(self, labels: Mapping[str, str]) -> str | None:
        """The job that an alert is about; None if its labels do not say."""
        return next((labels[name] for name in self.job_labels if labels.get(name)), None)


class Sources(BaseModel):
    """All sources of a service."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prometheus: tuple[PrometheusSource, ...] = Field(default=(), max_length=64)

    @classmethod
    def read(cls, path: Path) -> Sources:
        """Read the file; its relative paths count from its folder.

        Raises
        ------
        SourceError
            If the file cannot be read.
        InvalidInput
            Naming the member that is wrong.
        """
        read = read_document(path, cls, hint="docs/how-to/alerts.md shows such a file")
        here = path.resolve().parent
        return cls(prometheus=tuple(each.below(here) for each in read.prometheus))

    def wanted(self, labels: Mapping[str, str], began: float, now: float) -> WantedWindow:
        """What to read for an alert with these labels.

        Parameters
        ----------
        began, now : float, Unix seconds

        Raises
        ------
        InvalidInput
            If no source takes the alert, or its labels name no job.
        """
        taking = [each for each in self.prometheus if each.match.items() <= labels.items()]
        if not taking:
            raise InvalidInput(
                "no source takes alerts with these labels", hint="see `match` in the file of RCA_SOURCES"
            )
        for each in taking:
            job = each.job_of(labels)
            if job is not None:
                begin = max(min(began, now) - each.since, now - each.most)
                return WantedWindow(each, job, labels.get(each.namespace_label) or None, begin, now)
        names = ", ".join(dict.fromkeys(name for each in taking for name in each.job_labels))
        raise InvalidInput(
            f"the alert names no job: it has none of the labels {names}",
            hint="add one of them to the alert's rule, or set job_labels in the file of RCA_SOURCES",
        )


@dataclass(frozen=True)
class WantedWindow:
    """A job, and the time of the window to read, Unix seconds."""

    source: PrometheusSource
    job: str
    namespace: str | None
    start: float
    end: float

    def read(self, max_seconds: float) -> Window:
        """Read the window within `max_seconds`, or the time limit of the source if that is shorter.

        Raises
        ------
        InvalidInput, SourceError
            As `read_prometheus`.
        """
        return self.source.read_job(
            self.source.url,
            self.job,
            namespace=self.namespace,
            start=self.start,
            end=self.end,
            max_seconds=max_seconds,
        )
