"""The jobs that a Prometheus server has, as `rca jobs`, alerts and `rca watch` find them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.job_devices import check_labels
from rca.sources.prometheus.job_names import KnownJob, find_jobs
from rca.sources.prometheus.label_map import LabelMap, label_map_of
from rca.sources.prometheus.promql import ANY_METRIC, check_matchers, selector
from rca.sources.prometheus.queries import USUAL_SECONDS, TimeSpan
from rca.sources.prometheus.signals import names_by_level


def read_jobs(
    url: str,
    *,
    since: float = USUAL_SECONDS,
    labels: LabelMap | str | os.PathLike[str] | None = None,
    namespace: str | None = None,
    matchers: Sequence[str] = (),
    node: str | None = None,
    **server: Any,
) -> list[KnownJob]:
    """List the jobs for which devices, else machines, reported; parameters as of `read_prometheus`.

    Parameters
    ----------
    node : str, optional
        Only jobs with a device on this machine.
    **server
        Access to the server: ``token``, ``ca_file``, ``timeout``, ``allow_partial`` and ``headers``.

    Raises
    ------
    InvalidInput
        If an argument cannot be used.
    SourceError
        If the server cannot be reached, refuses the credentials, or answers with something else.
    """
    span = TimeSpan.of(since)
    check_matchers(matchers)
    asked = [selector(ANY_METRIC, *matchers)] if matchers else []
    client = Prometheus(url, **server)
    names = names_by_level(client.label_values("__name__", asked, span.start, span.end))
    label_map = label_map_of(labels)
    if names["device"] or names["node"]:
        check_labels(client, label_map, names["device"], names["node"], matchers, span.start, span.end)
    return find_jobs(
        client,
        names["device"] or names["node"],
        span.start,
        span.end,
        matchers=matchers,
        namespace=namespace,
        label_map=label_map,
        node=node,
    )
