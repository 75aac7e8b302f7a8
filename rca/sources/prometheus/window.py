"""A window from Prometheus: the samples of a job's devices and machines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.errors import InvalidInput, cut
from rca.sources.prometheus.client import USUAL_TIMEOUT, Prometheus
from rca.sources.prometheus.exporter_join import with_exporters
from rca.sources.prometheus.gaps import gaps
from rca.sources.prometheus.job_devices import JobDevices, JobSearch, check_labels
from rca.sources.prometheus.job_names import job_id
from rca.sources.prometheus.kubernetes import pod_name
from rca.sources.prometheus.label_map import LabelMap, label_map_of
from rca.sources.prometheus.machines import find_machines
from rca.sources.prometheus.metric_table import PlacedMatrix, SeriesPlace, metric_table
from rca.sources.prometheus.node_exporters import NodeExporters
from rca.sources.prometheus.node_labels import with_hardware
from rca.sources.prometheus.promql import ANY_METRIC, check_matchers, matcher, quoted, selector
from rca.sources.prometheus.queries import (
    MAX_SAMPLES,
    USUAL_SECONDS,
    Query,
    Report,
    TimeSpan,
    planned,
    read_samples,
)
from rca.sources.prometheus.rank_places import DeviceNames, RankPlaces, place_ranks
from rca.sources.prometheus.signals import CPU_TIMES, VIRTUAL, names_by_level
from rca.sources.prometheus.trainer_steps import TrainerSteps, read_steps
from rca.window.job import RankPlace
from rca.window.times.step_clock import sampled_within
from rca.window.window import Window


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
    span = TimeSpan.of(since, start, end)
    check_matchers(matchers)
    label_map = label_map_of(labels)
    server = Prometheus(
        url, token=token, ca_file=ca_file, timeout=timeout, allow_partial=allow_partial, headers=headers
    )
    reading = _Reading(
        server, job, span, label_map, namespace, tuple(matchers), report or _silent, max_samples, steps
    )
    return reading.window()


def _silent(phase: str, done: int, total: int) -> None:
    del phase, done, total


@dataclass(frozen=True)
class _Reading:
    """One job that is read from one server."""

    server: Prometheus
    job: str
    span: TimeSpan
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
            PlacedMatrix.of(part, lambda labels: self._place(labels, found, places, devices, exporters))
            for part in parts
        ]
        table, notes = metric_table(placed)
        window = self._window(
            places,
            table,
            [*places.notes, *notes, *gaps(self.server, found, exporters, placed, self.matchers, end)],
        )
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
