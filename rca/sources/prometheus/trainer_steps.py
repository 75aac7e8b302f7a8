"""Steps from the trainer's own metric of step times: a gauge of the last step, or a histogram or summary."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput, cut
from rca.robust import nan_median
from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.label_map import LabelMap
from rca.sources.prometheus.matrix import SeriesMatrix
from rca.sources.prometheus.promql import matcher, selector
from rca.sources.prometheus.queries import Query, Report, read_samples

#: Words of a metric's name: of a step, of a time, and of times that are a part of a step or no training.
_STEP = frozenset({"step", "steps", "iter", "iteration", "iterations", "batch"})
_TIME = frozenset({"time", "duration", "latency", "seconds", "ms", "milliseconds", "us", "microseconds"})
_OTHER = frozenset(
    {
        *("eval", "evaluation", "val", "validation", "test", "inference", "request", "decode", "prefill"),
        *("data", "load", "loader", "input", "forward", "backward", "optimizer", "checkpoint", "wait"),
        *("total", "size", "remaining", "eta", "timestamp", "created", "scheduler", "queue"),
    }
)
_UNITS: Mapping[str, float] = {
    **dict.fromkeys(("ms", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "microseconds"), 1e-6),
}
#: Labels with the number of the rank, and with the name of its machine.
RANK_LABELS = ("rank", "global_rank", "rank_id", "process_index", "worker_rank", "RANK")
_NODE_LABELS = ("node", "Hostname", "hostname", "host", "nodename", "kubernetes_node")
#: Labels whose value is no job, whatever it is.
_NO_JOB = frozenset({"__name__", "namespace", "instance", "le", "quantile", *RANK_LABELS})
#: Step times outside these bounds, seconds, are another quantity.
MIN_STEP, MAX_STEP = 1e-3, 7200.0
#: Rows of a window; of longer ones the newest steps are read.
MAX_ROWS = 2_000_000
#: Steps may be late by so many sampling intervals, and a step.
MAX_LATE_INTERVALS = 3.0
_POD_LABELS = ("exported_pod", "pod")


@dataclass(frozen=True)
class StepMetric:
    """A metric of step times.

    Attributes
    ----------
    counted : bool
        Whether it is a histogram or a summary, with ``_sum`` and ``_count``.
    unit : float, seconds
    """

    name: str
    counted: bool
    unit: float

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series that are read; the first one shows which there are."""
        return (f"{self.name}_count", f"{self.name}_sum") if self.counted else (self.name,)


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


def step_metrics(names: Sequence[str]) -> list[StepMetric]:
    """Metrics that look like times of training steps, the most telling first.

    Parameters
    ----------
    names : sequence of str
        Names of all metrics.
    """
    held = set(names)
    bases = {each.removesuffix("_sum") for each in held if f"{each.removesuffix('_sum')}_count" in held}
    found = [
        StepMetric(name, name in bases, _unit_of(name))
        for name in sorted({*bases, *held})
        if not name.endswith(("_sum", "_count", "_bucket")) and _is_step_time(name)
    ]
    # Every step counts in a histogram; a gauge shows the last one before a scrape.
    return sorted(found, key=lambda each: (not each.counted, "train" not in each.name.lower(), each.name))


def _words(name: str) -> list[str]:
    return re.split(r"[_:.]+", name.lower())


def _is_step_time(name: str) -> bool:
    words = set(_words(name))
    return bool(words & _STEP and words & _TIME and not words & _OTHER)


def _unit_of(name: str) -> float:
    return next((_UNITS[word] for word in _words(name) if word in _UNITS), 1.0)


def read_steps(
    server: Prometheus,
    job: str,
    names: Sequence[str],
    pods: Sequence[str],
    matchers: Sequence[str],
    label_map: LabelMap,
    start: float,
    end: float,
    report: Report,
    max_samples: int,
) -> TrainerSteps | None:
    """Read the steps of a job; None if no metric of step times has its name.

    Parameters
    ----------
    names, pods : sequence of str
        Names of all metrics, and of the job's pods.
    start, end : float, Unix seconds

    Raises
    ------
    InvalidInput
        If the label map names a metric that has no series of the job.
    """
    if label_map.steps is False:
        return None
    candidates = step_metrics(names)
    if label_map.steps is not None:
        wanted = label_map.steps
        known = f"{wanted.metric}_count" in names and f"{wanted.metric}_sum" in names
        unit = (
            _unit_of(wanted.metric)
            if wanted.unit is None
            else {"s": 1.0, "ms": 1e-3, "us": 1e-6}[wanted.unit]
        )
        candidates = [StepMetric(wanted.metric, known, unit)]
    for metric in candidates:
        asked = selector(matcher("__name__", metric.series[:1]), *matchers)
        series = server.series([asked], start, end)
        chosen = _of_job(series, job, pods, label_map)
        if chosen is None:
            continue
        queries = [
            Query(selector(matcher("__name__", [name]), *matchers, chosen), start, end)
            for name in metric.series
        ]
        parts = read_samples(server, queries, report, max_samples=max_samples)
        found = _steps(metric, SeriesMatrix.joined(parts), label_map)
        if found is not None:
            return found
    if label_map.steps is not None:
        raise InvalidInput(
            f"the metric {cut(label_map.steps.metric)} has no step times of the job {cut(job)} in this time",
            hint="check `steps` in the file of --labels, or leave it out",
        )
    return None


def _of_job(
    series: Sequence[Mapping[str, str]], job: str, pods: Sequence[str], label_map: LabelMap
) -> str | None:
    """The matcher of the series of a job: by a label with its name, or by its pods."""
    own = label_map.labels.job
    labels = [own] if own is not None else sorted({name for each in series for name in each} - _NO_JOB)
    # The label of the scrape comes last: it is usually the name of the exporter.
    for label in sorted(labels, key=lambda name: (name == "job", name)):
        if any(each.get(label) == job for each in series):
            return matcher(label, [job])
    for label in _POD_LABELS:
        held = sorted({each[label] for each in series if each.get(label) in set(pods)})
        if held:
            return matcher(label, held)
    return None


def _steps(metric: StepMetric, matrix: SeriesMatrix, label_map: LabelMap) -> TrainerSteps | None:
    """Steps of the samples; None if they are no step times."""
    samples = _samples(metric, matrix, label_map)
    if not samples:
        return None
    interval = _interval(list(samples.values()))
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
        return None
    # The job has the steps of its usual rank. A bin without a sample goes on like the one before.
    per_second = _filled(nan_median(rate))
    edges = first + interval * (np.arange(n_bins + 1) - 1.0)
    count = np.concatenate([[0.0], np.cumsum(per_second * interval)])
    n_steps = int(count[-1])
    if n_steps < 2:
        return None
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
    kind = "histogram" if metric.counted else "gauge"
    note = f"steps follow the {kind} {metric.name}, sampled every {interval:g} s"
    if everywhere:
        note += "; it names no rank, so its times stand for all ranks"
    nodes = {rank: each.node for rank, each in samples.items() if each.node is not None}
    return TrainerSteps(table, nodes, everywhere, note, interval)


@dataclass(frozen=True)
class _Samples:
    """Step times of one rank.

    Attributes
    ----------
    time : ndarray of shape (n,), Unix seconds
    seconds : ndarray of shape (n,)
        Of a step before each time.
    rate : ndarray of shape (n,), steps per second
    """

    time: FloatArray
    seconds: FloatArray
    rate: FloatArray
    node: str | None


def _samples(metric: StepMetric, matrix: SeriesMatrix, label_map: LabelMap) -> dict[int, _Samples]:
    """Samples by rank; rank -1 stands for the job if labels name no rank."""
    offsets = np.concatenate([[0], np.cumsum(matrix.counts)])
    series: dict[tuple[int, str], list[int]] = {}
    for row, labels in enumerate(matrix.labels):
        series.setdefault((_rank_of(labels, label_map), labels["__name__"]), []).append(row)

    def column(rank: int, name: str) -> tuple[FloatArray, FloatArray]:
        rows = series.get((rank, name), [])
        parts = [slice(int(offsets[row]), int(offsets[row + 1])) for row in rows]
        time = np.concatenate([matrix.time[part] for part in parts] or [np.empty(0)])
        value = np.concatenate([matrix.value[part] for part in parts] or [np.empty(0)])
        order = np.argsort(time, kind="stable")
        return time[order], value[order]

    found: dict[int, _Samples] = {}
    for rank in sorted({rank for rank, _ in series}):
        time, value = column(rank, metric.series[0])
        if metric.counted:
            total_time, total = column(rank, metric.series[1])
            time, at, of_total = np.intersect1d(time, total_time, return_indices=True)
            time, seconds, rate = _of_counters(time, value[at], total[of_total])
        else:
            time, at = np.unique(time, return_index=True)
            seconds = value[at]
            with np.errstate(divide="ignore", invalid="ignore"):
                rate = np.where(seconds > 0, 1.0 / seconds, np.nan)
        seconds = seconds * metric.unit
        rate = rate if metric.counted else rate / metric.unit
        if time.size >= 2:
            names = [matrix.labels[row] for row in series[rank, metric.series[0]]]
            node = next((each[name] for each in names for name in _NODE_LABELS if each.get(name)), None)
            found[rank] = _Samples(time, seconds, rate, node)
    ranked = {rank: each for rank, each in found.items() if rank >= 0}
    return ranked or {-1: _joined(found[-1])} if found else {}


def _joined(samples: _Samples) -> _Samples:
    return _Samples(samples.time, samples.seconds, samples.rate, None)


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


def _interval(samples: Sequence[_Samples]) -> float:
    apart = np.concatenate([np.diff(each.time) for each in samples])
    return max(float(np.median(apart[apart > 0])) if (apart > 0).any() else 1.0, 1e-3)


def _filled(values: FloatArray) -> FloatArray:
    """The values with the last known one in place of NaN; the first known one at the begin."""
    known = np.isfinite(values)
    if not known.any():
        return np.zeros(values.size)
    index: IntArray = np.maximum.accumulate(np.where(known, np.arange(values.size), -1))
    return np.asarray(values[np.where(index < 0, int(known.argmax()), index)])
