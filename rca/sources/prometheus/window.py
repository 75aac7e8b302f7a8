"""A window from Prometheus: the samples of a job's devices and machines."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.errors import InvalidInput, cut
from rca.sources.prometheus.client import USUAL_TIMEOUT, Prometheus
from rca.sources.prometheus.exporter_join import with_exporters
from rca.sources.prometheus.job_devices import JobDevices, JobSearch, check_labels
from rca.sources.prometheus.job_names import KnownJob, find_jobs, job_id
from rca.sources.prometheus.kubernetes import pod_name
from rca.sources.prometheus.label_map import LabelMap, read_label_map
from rca.sources.prometheus.machines import find_machines
from rca.sources.prometheus.metric_table import PlacedSeries, SeriesPlace, metric_table
from rca.sources.prometheus.node_exporters import NodeExporters
from rca.sources.prometheus.node_labels import with_hardware
from rca.sources.prometheus.promql import ANY_METRIC, MATCHER, chunks, matcher, quoted, selector
from rca.sources.prometheus.queries import MAX_SAMPLES, Query, Report, planned, read_samples
from rca.sources.prometheus.rank_places import DeviceNames, RankPlaces, place_ranks
from rca.sources.prometheus.signals import CPU_TIMES, VIRTUAL, names_by_level
from rca.sources.prometheus.trainer_steps import TrainerSteps, read_steps
from rca.window.catalogue import resolve
from rca.window.job import RankPlace
from rca.window.times.step_clock import sampled_within
from rca.window.window import Window

#: Span of a window unless one is given, and the longest, seconds.
USUAL_SECONDS, MAX_SECONDS = 1800.0, 7 * 86_400.0
#: Counters that DCGM's exporter leaves out unless its counters file names them.
OFF_BY_DEFAULT = (
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    "DCGM_FI_DEV_THERMAL_VIOLATION",
    "DCGM_FI_DEV_POWER_VIOLATION",
    "DCGM_FI_DEV_PCIE_LINK_GEN",
    "DCGM_FI_DEV_PCIE_LINK_WIDTH",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "DCGM_FI_PROF_SM_ACTIVE",
)


@dataclass(frozen=True)
class _Span:
    start: float
    end: float


def read_prometheus(
    url: str,
    job: str,
    *,
    since: float = USUAL_SECONDS,
    start: float | None = None,
    end: float | None = None,
    labels: LabelMap | str | os.PathLike[str] | None = None,
    namespace: str | None = None,
    matchers: Sequence[str] = (),
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    timeout: float = USUAL_TIMEOUT,
    allow_partial: bool = False,
    headers: Mapping[str, str] | None = None,
    max_samples: int = MAX_SAMPLES,
    steps: bool = True,
    report: Report | None = None,
) -> Window:
    """Read what the exporters reported about one job from Prometheus.

    Parameters
    ----------
    url : str
        Base address. A user and a password in it are sent as basic authentication.
    job : str
        Name of the job in Kubernetes, number in Slurm, or job of the scrape.
    since : float, seconds
        Length of the window if `start` is not given.
    start, end : float, Unix seconds, optional
        Bounds of the window. It ends now by default.
    labels : LabelMap or path, optional
        Names of labels and places of ranks (YAML).
    namespace : str, optional
        Of the job's pods. The id of the job begins with it.
    matchers : sequence of str
        Matchers that every series has to meet, such as ``cluster="eu-1"``.
    token : str, optional
        Bearer token. Default: of the environment variable ``RCA_PROMETHEUS_TOKEN``.
    ca_file : path, optional
        Certificates to trust in place of the system's.
    timeout : float, seconds
        Of all requests together, one day at most.
    allow_partial : bool
        Note warnings of the server in place of an error.
    headers : mapping of str to str, optional
        Sent with every request, such as ``X-Scope-OrgID`` with the tenant of Mimir. No message shows values.
    steps : bool
        Whether to look for the trainer's own metric of step times.
    report : callable, optional
        ``report(phase, done, total)``.

    Returns
    -------
    Window
        With the steps of the trainer's metric. Without one, a diagnosis compares machines.

    Raises
    ------
    InvalidInput
        If there is no such job, several have its name, or an argument cannot be used.
    SourceError
        If the server cannot be reached, refuses the credentials, or answers with something else.
    TooLarge
        If the job has more than `max_samples` samples in this time.
    """
    span = _span(since, start, end)
    check_matchers(matchers)
    label_map = _label_map(labels)
    server = Prometheus(
        url, token=token, ca_file=ca_file, timeout=timeout, allow_partial=allow_partial, headers=headers
    )
    reading = _Reading(
        server, job, span, label_map, namespace, tuple(matchers), report or _silent, max_samples, steps
    )
    return reading.window()


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
    span = _span(since, None, None)
    check_matchers(matchers)
    asked = [selector(ANY_METRIC, *matchers)] if matchers else []
    client = Prometheus(url, **server)
    names = names_by_level(client.label_values("__name__", asked, span.start, span.end))
    label_map = _label_map(labels)
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


def _label_map(labels: LabelMap | str | os.PathLike[str] | None) -> LabelMap:
    if isinstance(labels, LabelMap):
        return labels
    return LabelMap() if labels is None else read_label_map(labels)


def check_matchers(matchers: Sequence[str]) -> None:
    """Refuse what is no label matcher.

    Raises
    ------
    InvalidInput
    """
    for each in matchers:
        if not re.fullmatch(MATCHER, each):
            raise InvalidInput(f"{cut(each)!r} is no label matcher", hint='write it like cluster="eu-1"')


def _silent(phase: str, done: int, total: int) -> None:
    del phase, done, total


def _span(since: float, start: float | None, end: float | None) -> _Span:
    last = time.time() if end is None else end
    first = last - since if start is None else start
    if last < first:
        raise InvalidInput(
            f"the end of the window lies {first - last:g} s before its start",
            hint="give an --end after --start; without --end, the window ends now",
        )
    if not 0 < last - first <= MAX_SECONDS:
        raise InvalidInput(
            f"the window has {last - first:g} s",
            hint=f"give at most {MAX_SECONDS / 86_400:g} days with --since, or --start and --end",
        )
    return _Span(round(first, 3), round(last, 3))


@dataclass(frozen=True)
class _Reading:
    """One job that is read from one server."""

    server: Prometheus
    job: str
    span: _Span
    label_map: LabelMap
    namespace: str | None
    matchers: tuple[str, ...]
    report: Report
    max_samples: int
    steps: bool

    def window(self) -> Window:
        start, end = self.span.start, self.span.end
        asked = [selector(ANY_METRIC, *self.matchers)] if self.matchers else []
        held = self.server.label_values("__name__", asked, start, end)
        names = names_by_level(held)
        if not names["device"] and not names["node"]:
            chosen = f" with {cut(', '.join(self.matchers), 400)}" if self.matchers else ""
            raise InvalidInput(
                f"{self.server.address} has no metric of a GPU or node exporter{chosen} in this time",
                hint="check --match, --start and --end"
                if chosen
                else "rca signals lists the names; check the exporters, --start and --end",
            )
        check_labels(self.server, self.label_map, names["device"], names["node"], self.matchers, start, end)
        search = JobSearch(
            self.server, self.job, start, end, names["device"], self.matchers, self.namespace, self.label_map
        )
        found, places = self._ranks(search, names["node"])
        devices = DeviceNames(found, self.label_map)
        places = with_hardware(places, found, devices, self.server, self.matchers, start, end)
        nodes = sorted({place.node for place in places.places if place.node is not None})
        exporters = NodeExporters.find(self.server, nodes, self.matchers, start, end)
        queries = [
            *self._device_queries(found),
            *self._container_queries(found, names["container"]),
            *self._node_queries(exporters, names["node"]),
        ]
        self.report(f"{places.world_size} ranks on {len(nodes)} nodes, {len(queries)} queries", 0, 0)
        parts = read_samples(self.server, queries, self.report, max_samples=self.max_samples)
        placed = [
            PlacedSeries.of(part, lambda labels: self._place(labels, found, places, devices, exporters))
            for part in parts
        ]
        table, notes = metric_table(placed)
        window = self._window(places, table, [*places.notes, *notes, *self._gaps(found, exporters, placed)])
        return self._with_steps(window, held, found) if self.steps else window

    def _with_steps(self, window: Window, names: Sequence[str], found: JobDevices) -> Window:
        """The window with the steps of the trainer's own metric, if there is one."""
        steps, notes = read_steps(
            self.server,
            self.job,
            names,
            sorted({(pod.namespace, pod.name) for pod in found.pods}),
            self.namespace,
            self.matchers,
            self.label_map,
            self.span.start,
            self.span.end,
            self.report,
            self.max_samples,
        )
        if steps is None:
            return replace(window, notes=(*window.notes, *notes))
        try:
            return self._joined(steps, window)
        except InvalidInput as error:
            if self.label_map.steps is not None:
                raise
            return replace(
                window, notes=(*window.notes, f"no steps of the trainer's metric: {error.message}")
            )

    def _joined(self, steps: TrainerSteps, window: Window) -> Window:
        table = steps.table
        size = max(window.job.world_size, 1 + int(pc.max(table.column("rank")).as_py()))
        if steps.everywhere:
            table = pa.concat_tables(
                table.set_column(0, "rank", pa.array(np.full(table.num_rows, rank, dtype=np.int32)))
                for rank in range(size)
            )
        ranks = tuple(RankPlace(rank=rank, node=node) for rank, node in sorted(steps.nodes.items()))
        end = steps.end(window.job.end)
        job = window.job.model_copy(update={"world_size": size, "ranks": ranks or None, "end": end})
        window = replace(window, metrics=sampled_within(window.metrics, window.job.start, end))
        timed = Window.from_tables(job, steps=table)
        return with_exporters(replace(timed, notes=(steps.note, *timed.notes)), window)

    def _ranks(self, search: JobSearch, node_names: Sequence[str]) -> tuple[JobDevices, RankPlaces]:
        """The devices of the job with their ranks; without any, its machines with a rank each."""
        found = search.find() if search.names else None
        if found is not None:
            return found, place_ranks(found, self.label_map)
        machines = find_machines(search, node_names) if node_names else None
        if machines is None:
            raise search.unknown(node_names)
        return machines

    def _device_queries(self, found: JobDevices) -> list[Query]:
        return [
            query
            for chosen in found.matchers
            for query in planned(
                self.server, found.names, (*self.matchers, *chosen), self.span.start, self.span.end
            )
        ]

    def _container_queries(self, found: JobDevices, names: Sequence[str]) -> list[Query]:
        """Of the containers of the pods: their own, not the sums over a pod."""
        if not names or not found.pods:
            return []
        pods = sorted({pod.name for pod in found.pods})
        chosen = (
            matcher("namespace", [found.pods[0].namespace]),
            matcher("pod", pods),
            'container!=""',
            'container!="POD"',
        )
        return planned(self.server, names, (*self.matchers, *chosen), self.span.start, self.span.end)

    def _node_queries(self, exporters: NodeExporters, names: Sequence[str]) -> list[Query]:
        start, end = self.span.start, self.span.end
        whole = [name for name in names if name not in CPU_TIMES]
        virtual = f"device!~{quoted(VIRTUAL)}"
        queries: list[Query] = []
        for hosts in exporters.matchers():
            queries += planned(self.server, whole, (*self.matchers, hosts, virtual), start, end)
            queries += [
                Query.of_sums(name, (*self.matchers, hosts), ("instance", "mode"), start, end)
                for name in names
                if name in CPU_TIMES
            ]
        return queries

    def _place(
        self,
        labels: Mapping[str, str],
        found: JobDevices,
        places: RankPlaces,
        devices: DeviceNames,
        exporters: NodeExporters,
    ) -> SeriesPlace | None:
        name = labels.get("__name__", "")
        if name in found.names:
            device = devices.of(labels)
            if device is None:
                return None
            node, gpu, part, uuid = device
            text = uuid or str(gpu)
            return SeriesPlace(node, places.ranks.get(device), f"{text}/{part}" if part else text, whole=True)
        host: str | None
        if name.startswith("container_"):
            pod = pod_name(labels)
            host = None if pod is None else found.node_of_pod.get(pod)
            return None if host is None else SeriesPlace(host, None, labels.get("container"))
        host = exporters.node_of(labels)
        return None if host is None else SeriesPlace(host)

    def _gaps(self, found: JobDevices, exporters: NodeExporters, placed: Sequence[PlacedSeries]) -> list[str]:
        notes = list(self.server.warnings)
        reporting = {
            place.node
            for part in placed
            for labels, place in zip(part.matrix.labels, part.places, strict=True)
            if place is not None and place.node is not None and labels.get("__name__", "") not in found.names
        }
        silent = exporters.silent(reporting)
        if silent:
            notes.append(
                f"no node exporter reports on {len(silent)} of {len(exporters.nodes)} nodes "
                f"({', '.join(silent[:3])}{', ...' if len(silent) > 3 else ''}): "
                "its instance, or nodename in node_uname_info, has to be the name of the machine"
            )
        notes += self._down(found)
        held = {resolve(name) for name in found.names}
        off = [name for name in OFF_BY_DEFAULT if resolve(name) not in held]
        if off and any(name.lower().startswith("dcgm_") for name in found.names):
            notes.append(
                f"DCGM's exporter leaves out {', '.join(off)} by default: "
                "api/deploy/prometheus/dcgm-counters.csv turns them on"
            )
        return notes

    def _down(self, found: JobDevices) -> list[str]:
        """The note on targets of the job's devices that Prometheus cannot scrape now."""
        targets = sorted({labels["instance"] for labels in found.series if labels.get("instance")})
        down = sorted(
            each["metric"].get("instance", "")
            for names in chunks(targets)
            for each in self.server.query(
                f"{selector(matcher('__name__', ['up']), *self.matchers, matcher('instance', names))} == 0",
                self.span.end,
            )
        )
        if not down:
            return []
        shown = ", ".join(down[:3]) + (", ..." if len(down) > 3 else "")
        return [
            f"{len(down)} of {len(targets)} exporters of the job are down (up is 0): {shown}. That says "
            "nothing about the job"
        ]

    def _window(self, places: RankPlaces, table: pa.Table, notes: Sequence[str]) -> Window:
        job = {
            "job_id": job_id(self.job, self.namespace),
            "world_size": places.world_size,
            "ranks": [place.model_dump(exclude_none=True) for place in places.places],
            "start": self.span.start,
            "end": self.span.end,
        }
        if not table.num_rows:
            raise InvalidInput(
                f"Prometheus has no sample of the job {cut(self.job)} in this time",
                hint="check --start and --end, and whether the job ran",
            )
        window = Window.from_tables(job, metrics=table)
        return replace(window, notes=(*window.notes, *notes))
