"""Steps from the trainer's own metric of step times: a gauge of the last step, or a histogram or summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput, cut
from rca.robust import nan_median
from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.job_names import NODE_LABELS, PodName
from rca.sources.prometheus.kubernetes import POD_PAIRS
from rca.sources.prometheus.label_map import LabelMap
from rca.sources.prometheus.matrix import SeriesMatrix
from rca.sources.prometheus.promql import matcher, selector
from rca.sources.prometheus.queries import Query, Report, read_samples
from rca.sources.prometheus.step_metrics import StepMetric, named_metric, step_metrics

#: Labels with the number of the rank, and with the name of its machine.
RANK_LABELS = ("rank", "global_rank", "rank_id", "process_index", "worker_rank", "RANK")
#: Labels with the name of the trainer's machine; `instance` may be that of a gateway.
_MACHINE_LABELS = (*(name for name in NODE_LABELS if name != "instance"), "host")
#: Labels of the process that a series is of.
_PROCESS_LABELS = ("instance", "exported_pod", "pod", "exported_instance")
_NAMESPACES = tuple(namespace for _, namespace in POD_PAIRS)
#: Labels whose value is no job, whatever it is.
_NO_JOB = frozenset({"__name__", *_NAMESPACES, "instance", "le", "quantile", *RANK_LABELS})
#: Step times outside these bounds, seconds, are another quantity.
MIN_STEP, MAX_STEP = 1e-3, 7200.0
#: Rows of a window; of longer ones the newest steps are read.
MAX_ROWS = 2_000_000
#: Steps may be late by so many sampling intervals, and a step.
MAX_LATE_INTERVALS = 3.0
#: A gauge is frozen if its last value stands so many times as long as any before, of which there are some.
MIN_FROZEN, MIN_CHANGES = 4, 8


@dataclass(frozen=True)
class TrainerSteps:
    """Steps of the trainer's metric.

    Attributes
    ----------
    table : pyarrow.Table
        Columns of a window's steps.
    nodes : mapping of int to str
        Machine of each rank, as far as labels name it.
    interval : float, seconds
        Between two samples.
    everywhere : bool
        Whether one step time of the job stands for all ranks; then the table has rank 0 only.
    """

    table: pa.Table
    nodes: Mapping[int, str]
    everywhere: bool
    note: str
    interval: float

    def end(self, asked: float) -> float:
        """End of a window that was asked for up to a time, Unix seconds.

        Steps after the newest sample are not known yet, which is no stop.
        """
        begun, seconds = (self.table.column(name).to_numpy() for name in ("start_time", "step_seconds"))
        last = float((begun + seconds).max())
        return last if 0 < asked - last < MAX_LATE_INTERVALS * self.interval + float(seconds.max()) else asked


def read_steps(
    server: Prometheus,
    job: str,
    names: Sequence[str],
    pods: Sequence[PodName],
    namespace: str | None,
    matchers: Sequence[str],
    label_map: LabelMap,
    start: float,
    end: float,
    report: Report,
    max_samples: int,
) -> tuple[TrainerSteps | None, list[str]]:
    """Read the steps of a job, and say why metrics of step times are of no use.

    Parameters
    ----------
    names : sequence of str
        Of all metrics.
    pods : sequence of (namespace, name)
        Of the job.
    namespace : str or None
        Of the job's pods, if it was asked for. By default that of `pods`.
    start, end : float, Unix seconds

    Returns
    -------
    steps : TrainerSteps or None
        None if no metric of step times has the job's name.
    notes : list of str

    Raises
    ------
    InvalidInput
        If the label map names a metric that has no step times of the job.
    """
    wanted = label_map.steps
    if wanted is False:
        return None, []
    candidates = step_metrics(names) if wanted is None else [named_metric(wanted, names)]
    own = namespace or next((each for each, _ in pods if each), None)
    chosen = (*matchers, *(() if wanted is None else wanted.match))
    notes: list[str] = []
    for metric in candidates:
        asked = selector(matcher("__name__", metric.series[:1]), *chosen)
        of_job = _of_job(server.series([asked], start, end), job, [name for _, name in pods], own, label_map)
        if of_job is None:
            continue
        queries = [
            Query(selector(matcher("__name__", [name]), *chosen, *of_job), start, end)
            for name in metric.series
        ]
        parts = read_samples(server, queries, report, max_samples=max_samples)
        try:
            return steps_of_samples(metric, SeriesMatrix.joined(parts), label_map), notes
        except InvalidInput as error:
            if wanted is not None:
                raise
            notes.append(f"no steps: {error.message}")
    if wanted is not None:
        raise InvalidInput(
            f"the metric {cut(wanted.metric)} has no step times of the job {cut(job)} in this time",
            hint="check `steps` in the file of --labels, or leave it out",
        )
    return None, notes


def _of_job(
    series: Sequence[Mapping[str, str]],
    job: str,
    pods: Sequence[str],
    namespace: str | None,
    label_map: LabelMap,
) -> list[str] | None:
    """Matchers of the series of a job: by a label with its name, or by its pods, in its namespace."""
    of_namespace: list[str] = []
    if namespace is not None:
        # The label of the scrape is that of the exporter's own pod, if there are both.
        label = next((name for name in _NAMESPACES if any(each.get(name) for each in series)), None)
        if label is not None:
            of_namespace = [matcher(label, [namespace])]
            series = [each for each in series if each.get(label) == namespace]
    own = label_map.labels.job
    labels = [own] if own is not None else sorted({name for each in series for name in each} - _NO_JOB)
    # The label of the scrape comes last: it is usually the name of the exporter.
    for label in sorted(labels, key=lambda name: (name == "job", name)):
        if any(each.get(label) == job for each in series):
            return [matcher(label, [job]), *of_namespace]
    for label, _ in POD_PAIRS:
        held = sorted({each[label] for each in series if each.get(label) in set(pods)})
        if held:
            return [matcher(label, held), *of_namespace]
    return None


def steps_of_samples(metric: StepMetric, matrix: SeriesMatrix, label_map: LabelMap) -> TrainerSteps:
    """Steps of the samples of one job.

    Raises
    ------
    InvalidInput
        If they are no step times, or several series of a rank cannot be distinguished.
    """
    samples = _samples(metric, matrix, label_map)
    if not samples:
        raise InvalidInput(f"the metric {cut(metric.name)} has too few samples of the job")
    interval = float(np.median([each.interval for each in samples.values()]))
    first = min(float(each.time[0]) for each in samples.values())
    last = max(float(each.time[-1]) for each in samples.values())
    n_bins = int(np.ceil((last - first) / interval)) + 1
    ranks = sorted(samples)
    seconds, rate = np.full((len(ranks), n_bins), np.nan), np.full((len(ranks), n_bins), np.nan)
    for row, rank in enumerate(ranks):
        held = samples[rank]
        at = np.minimum(np.round((held.time - first) / interval).astype(np.int64), n_bins - 1)
        seconds[row, at], rate[row, at] = held.seconds, held.rate
    usual = float(nan_median(seconds.reshape(1, -1), axis=1)[0])
    if not MIN_STEP <= usual <= MAX_STEP:
        raise InvalidInput(f"the metric {cut(metric.name)} holds {usual:g} s, which is no step time")
    # The job has the steps of its usual rank. A bin without a sample goes on like the one before.
    per_second = _filled(nan_median(rate))
    edges = first + interval * (np.arange(n_bins + 1) - 1.0)
    count = np.concatenate([[0.0], np.cumsum(per_second * interval)])
    n_steps = int(count[-1])
    if n_steps < 2:
        raise InvalidInput(f"the metric {cut(metric.name)} shows less than two steps of the job")
    kept = min(n_steps, MAX_ROWS // len(ranks))
    number = np.arange(n_steps - kept, n_steps)
    begin = np.interp(number, count, edges)
    bins = np.clip(((begin + usual / 2 - edges[0]) / interval).astype(np.int64), 0, n_bins - 1)
    values = seconds[:, bins]
    known = np.isfinite(values)
    everywhere = ranks == [-1]
    table = pa.table(
        {
            "rank": np.repeat(np.maximum(ranks, 0), known.sum(axis=1)).astype(np.int32),
            "step": np.broadcast_to(number + 1, values.shape)[known],
            "start_time": np.broadcast_to(begin, values.shape)[known],
            "step_seconds": values[known],
        }
    )
    nodes = {rank: each.node for rank, each in samples.items() if each.node is not None and rank >= 0}
    idle = float(edges[-1] - (begin[-1] + usual))
    note = _note(metric, interval, idle, everywhere=everywhere)
    return TrainerSteps(table, nodes, everywhere, note, interval)


def _note(metric: StepMetric, interval: float, idle: float, *, everywhere: bool) -> str:
    kind = "histogram" if metric.counted else "gauge"
    note = f"steps follow the {kind} {metric.name}, sampled every {interval:g} s"
    if metric.unit is None:
        note += "; its name has no unit, so seconds are assumed"
    if everywhere:
        note += "; it names no rank, so its times stand for all ranks"
    if idle > MAX_LATE_INTERVALS * interval:
        note += f"; it shows no new step in the last {idle:.0f} s"
    return note


@dataclass(frozen=True)
class _Samples:
    """Step times of one rank.

    Attributes
    ----------
    time : ndarray of shape (n,), Unix seconds
    seconds : ndarray of shape (n,)
        Of a step before each time.
    rate : ndarray of shape (n,), steps per second
    interval : float, seconds
        Between two samples of a series.
    """

    time: FloatArray
    seconds: FloatArray
    rate: FloatArray
    interval: float
    node: str | None


def _samples(metric: StepMetric, matrix: SeriesMatrix, label_map: LabelMap) -> dict[int, _Samples]:
    """Samples by rank; rank -1 stands for the job if labels name no rank."""
    offsets = np.concatenate([[0], np.cumsum(matrix.counts)])
    parts: dict[frozenset[tuple[str, str]], dict[str, slice]] = {}
    for row, labels in enumerate(matrix.labels):
        rest = frozenset((name, value) for name, value in labels.items() if name != "__name__")
        parts.setdefault(rest, {})[labels["__name__"]] = slice(int(offsets[row]), int(offsets[row + 1]))
    ranks: dict[int, list[tuple[Mapping[str, str], _Samples]]] = {}
    for rest, held in parts.items():
        columns = [
            (matrix.time[held[name]], matrix.value[held[name]]) for name in metric.series if name in held
        ]
        if len(columns) == len(metric.series) and columns[0][0].size >= 2:
            labels = dict(rest)
            node = next((labels[name] for name in _MACHINE_LABELS if labels.get(name)), None)
            found = _of_series(metric, columns, node)
            ranks.setdefault(_rank_of(labels, label_map), []).append((labels, found))
    joined = {rank: _joined(metric, each) for rank, each in sorted(ranks.items())}
    return {rank: each for rank, each in joined.items() if rank >= 0} or joined


def _of_series(
    metric: StepMetric, columns: Sequence[tuple[FloatArray, FloatArray]], node: str | None
) -> _Samples:
    """Step times of one series: of a gauge, or of the two counters of a histogram."""
    unit = metric.unit or 1.0
    time, value = columns[0]
    interval = max(float(np.median(np.diff(time))), 1e-3)
    if metric.counted:
        time, at, of_total = np.intersect1d(time, columns[1][0], return_indices=True)
        time, seconds, rate = _of_counters(time, value[at], columns[1][1][of_total])
        return _Samples(time, seconds * unit, rate, interval, node)
    # A value outside the bounds stands for none.
    seconds = np.where(value > 0, value * unit, np.nan)
    rate = 1.0 / seconds
    rate[_frozen_from(value) :] = 0.0
    return _Samples(time, seconds, rate, interval, node)


def _frozen_from(values: FloatArray) -> int:
    """The sample after which a gauge that varied before has one value only; the number of all without one.

    The exporter of a process that hangs goes on with the last value.
    """
    begins = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
    lengths = np.diff(begins, append=values.size)
    if lengths.size <= MIN_CHANGES or lengths[-1] < MIN_FROZEN * lengths[:-1].max():
        return int(values.size)
    return int(begins[-1]) + 1


def _joined(metric: StepMetric, series: Sequence[tuple[Mapping[str, str], _Samples]]) -> _Samples:
    """Samples of all series of a rank, or of a job without ranks: one after another, or of its processes.

    Raises
    ------
    InvalidInput
        If one process has several series at a time.
    """
    if len(series) == 1:
        return series[0][1]
    processes: dict[tuple[str, ...], list[tuple[Mapping[str, str], _Samples]]] = {}
    for labels, each in series:
        processes.setdefault(tuple(labels.get(name, "") for name in _PROCESS_LABELS), []).append(
            (labels, each)
        )
    for held in processes.values():
        held.sort(key=lambda one: float(one[1].time[0]))
        for (before, one), (after, other) in pairwise(held):
            if other.time[0] <= one.time[-1]:
                differ = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
                raise InvalidInput(
                    f"the metric {cut(metric.name)} has several series of one process, which differ in "
                    f"{cut(', '.join(differ))}",
                    hint="choose one by `steps: {metric: NAME, match: [...]}` in the file of --labels",
                )
    time = np.concatenate([each.time for _, each in series])
    seconds = np.concatenate([each.seconds for _, each in series])
    rate = np.concatenate([each.rate for _, each in series])
    order = np.lexsort((seconds, time))
    # Of processes that were scraped at one time the median stands.
    _, begin, count = np.unique(time[order], return_index=True, return_counts=True)
    chosen = order[begin + (count - 1) // 2]
    interval = float(np.median([each.interval for _, each in series]))
    return _Samples(time[chosen], seconds[chosen], rate[chosen], interval, series[0][1].node)


def _of_counters(
    time: FloatArray, count: FloatArray, total: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean step time and steps per second between two samples of a histogram."""
    steps, lasted, apart = np.diff(count), np.diff(total), np.diff(time)
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.where((steps > 0) & (lasted >= 0), lasted / steps, np.nan)
        rate = np.where(steps >= 0, steps / apart, np.nan)
    return time[1:], seconds, rate


def _rank_of(labels: Mapping[str, str], label_map: LabelMap) -> int:
    own = label_map.labels.rank
    names = RANK_LABELS if own is None else (own,)
    text = next((labels[name] for name in names if labels.get(name)), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else -1


def _filled(values: FloatArray) -> FloatArray:
    """The values with the last known one in place of NaN; the first known one at the begin."""
    known = np.isfinite(values)
    if not known.any():
        return np.zeros(values.size)
    index: IntArray = np.maximum.accumulate(np.where(known, np.arange(values.size), -1))
    return np.asarray(values[np.where(index < 0, int(known.argmax()), index)])
