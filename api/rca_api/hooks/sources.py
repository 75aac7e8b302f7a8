"""The file of `RCA_SOURCES`: from which Prometheus server the window of an alert's job comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from rca.errors import InvalidInput, cut
from rca.sources.prometheus.job_names import JOB_LABELS, NODE_LABELS, JobName, job_of
from rca.sources.prometheus.kubernetes import POD_PAIRS
from rca.window.window import Window
from rca.yaml_documents import read_document
from rca_api.watch.prometheus_access import PrometheusAccess, Span

#: Labels that usually name the job of an alert.
_NAMING = (*JOB_LABELS, *(pod for pod, _ in POD_PAIRS), "label_jobset_sigs_k8s_io_jobset_name")
#: At most a day.
WindowSpan = Annotated[Span, Field(le=86_400)]


class PrometheusSource(PrometheusAccess):
    """One Prometheus server, and the alerts whose jobs it has series of.

    Attributes
    ----------
    match : dict of str to str
        Labels and values that an alert must have.
    job_labels : tuple of str
        Further labels of an alert that name the job, before the usual ones; the first one that it has. `job`
        names the scrape.
    namespace_label : str
        Label of an alert that names the namespace of the job's pods.
    since : float
        Seconds before the begin of the alert at which the window begins.
    max_span : float
        Longest window, seconds. It ends now. `most` is its former name.
    """

    url: str = Field(min_length=1)
    match: dict[str, str] = Field(default_factory=dict)
    job_labels: tuple[str, ...] = ()
    namespace_label: str = "namespace"
    since: WindowSpan = 900.0
    max_span: WindowSpan = Field(3600.0, validation_alias=AliasChoices("max_span", "most"))

    def job_of(self, labels: Mapping[str, str]) -> JobName | None:
        """The job that an alert is about: by its own labels, those of exporters, or its pod; else None."""
        own = next((labels[name] for name in self.job_labels if labels.get(name)), None)
        found = job_of(labels) if own is None else JobName(own)
        if found is None:
            return None
        return replace(found, namespace=labels.get(self.namespace_label) or found.namespace)


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
        node = next((labels[name] for name in NODE_LABELS if labels.get(name)), None)
        for each in taking:
            job, begin = each.job_of(labels), max(min(began, now) - each.since, now - each.max_span)
            if job is not None:
                return WantedWindow(each, job.name, job.namespace or None, begin, now)
        if node is not None:
            return WantedWindow(taking[0], None, None, begin, now, node)
        names = ", ".join(dict.fromkeys((*(name for each in taking for name in each.job_labels), *_NAMING)))
        raise InvalidInput(
            f"the alert names no job: it has none of the labels {names}",
            hint="add one of them to the alert's rule, or set job_labels in the file of RCA_SOURCES",
        )


@dataclass(frozen=True)
class WantedWindow:
    """A job, and the time of the window to read, Unix seconds.

    Attributes
    ----------
    job : str or None
        None if it is the one that runs on `node`.
    """

    source: PrometheusSource
    job: str | None
    namespace: str | None
    start: float
    end: float
    node: str | None = None

    def read(self, max_seconds: float) -> Window:
        """Read the window within `max_seconds`, or the time limit of the source if that is shorter.

        Raises
        ------
        InvalidInput, SourceError
            As `read_prometheus`.
        """
        job, namespace = self.job, self.namespace
        if job is None:
            job, namespace = self._on_node(max_seconds)
        return self.source.read_job(
            self.source.url,
            job,
            namespace=namespace,
            start=self.start,
            end=self.end,
            max_seconds=max_seconds,
        )

    def _on_node(self, max_seconds: float) -> tuple[str, str | None]:
        """Name and namespace of the job with devices on the machine that the alert names."""
        found = self.source.find_jobs(
            self.source.url, since=self.end - self.start, node=self.node, max_seconds=max_seconds
        )
        if len(found) != 1:
            names = ", ".join(each.job.name for each in found)
            raise InvalidInput(
                f"{len(found)} jobs have devices on {cut(self.node or '')}"
                + (f": {cut(names)}" if found else ""),
                hint="add the label pod, or one with the job, to the alert's rule",
            )
        return found[0].job.name, found[0].job.namespace or None
