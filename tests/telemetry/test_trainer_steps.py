"""Steps from the trainer's own metric in Prometheus, beside the exporters of its machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

import rca
from rca.cli import app
from rca.errors import InvalidInput
from rca.sources.prometheus import trainer_steps
from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.exporter_join import with_exporters, with_exporters_of
from rca.sources.prometheus.label_map import LabelMap, StepTimeSeries
from rca.sources.prometheus.matrix import SeriesMatrix
from rca.sources.prometheus.queries import Query
from rca.sources.prometheus.step_metrics import StepMetric, step_metrics
from rca.sources.prometheus.trainer_steps import read_steps, steps_of_samples
from tests.for_each import for_each
from tests.telemetry.prometheus_servers import END, MISSING, dcgm_samples, prometheus

INTERVAL, N_RANKS, SLOW_FROM = 5.0, 8, 600.0
TIMES = END - 900.0 + INTERVAL * np.arange(180)


@for_each(
    ("name", "unit"),
    [
        ("train_step_seconds", 1.0),
        ("training_step_time", None),
        ("megatron_iteration_time_ms", 1e-3),
        ("trainer:iteration_duration_milliseconds", 1e-3),
        ("step_duration_seconds", 1.0),
    ],
)
def test_usual_names_of_step_times_are_found(name: str, unit: float) -> None:
    assert step_metrics([name, "up"]) == [StepMetric(name, counted=False, unit=unit)]


def test_other_times_are_no_step_times() -> None:
    others = [
        "eval_step_seconds",
        "data_load_step_seconds",
        "step_seconds_total",
        "time_step",
        "node_time_seconds",
    ]
    others += [
        "prometheus_rule_evaluation_duration_seconds",
        "train_step_forward_seconds",
        "train_steps_remaining_seconds",
    ]
    assert [each.name for each in step_metrics(others)] in ([], ["time_step"])


def test_a_histogram_comes_before_a_gauge() -> None:
    names = [
        "train_step_seconds",
        *(f"train_step_duration_seconds_{part}" for part in ("sum", "count", "bucket")),
    ]
    assert [(each.name, each.counted) for each in step_metrics(names)] == [
        ("train_step_duration_seconds", True),
        ("train_step_seconds", False),
    ]


def step_at(time: np.ndarray) -> np.ndarray:
    """Step time of the job: 1 s, and 1.6 s while a GPU is slow."""
    return np.where(time >= TIMES[0] + SLOW_FROM, 1.6, 1.0)


def matrix(series: Sequence[tuple[dict[str, str], np.ndarray]]) -> SeriesMatrix:
    return SeriesMatrix(
        tuple(labels for labels, _ in series),
        np.full(len(series), TIMES.size),
        np.tile(TIMES, len(series)),
        np.concatenate([values for _, values in series]),
    )


def gauge(ranks: Sequence[str | None]) -> SeriesMatrix:
    return matrix(
        [
            ({"__name__": "step_seconds", **({} if rank is None else {"rank": rank})}, step_at(TIMES))
            for rank in ranks
        ]
    )


def histogram(ranks: Sequence[int]) -> SeriesMatrix:
    count = np.cumsum(INTERVAL / step_at(TIMES))
    total = np.cumsum(np.full(TIMES.size, INTERVAL))
    return matrix(
        [
            ({"__name__": f"step_seconds_{part}", "rank": str(rank)}, values)
            for rank in ranks
            for part, values in (("count", np.floor(count)), ("sum", total - (count % 1) * step_at(TIMES)))
        ]
    )


@pytest.mark.parametrize("counted", [False, True])
def test_steps_cover_the_time_of_the_samples_without_gaps(counted: bool) -> None:
    metric = StepMetric("step_seconds", counted, 1.0)
    found = steps_of_samples(metric, histogram(range(2)) if counted else gauge(["0", "1"]), LabelMap())
    own = found.table.filter(pc.equal(found.table["rank"], 1))
    begin, seconds = own["start_time"].to_numpy(), own["step_seconds"].to_numpy()
    change = TIMES[0] + SLOW_FROM
    assert seconds[begin < change - 2 * INTERVAL] == pytest.approx(1.0, abs=0.01)
    assert seconds[begin > change + INTERVAL] == pytest.approx(1.6, abs=0.01)
    # One step begins where the one before ends.
    assert np.abs(np.diff(begin) - seconds[:-1]).max() < 0.7
    assert np.abs(np.median(np.diff(begin) - seconds[:-1])) < 0.01
    assert own.num_rows == pytest.approx(SLOW_FROM + 300 / 1.6, rel=0.03)


def test_a_gauge_without_ranks_stands_for_all_ranks() -> None:
    found = steps_of_samples(StepMetric("step_seconds", counted=False, unit=1.0), gauge([None]), LabelMap())
    assert found.everywhere
    assert "stand for all ranks" in found.note


def test_what_lasts_days_is_no_step() -> None:
    samples = matrix([({"__name__": "step_seconds", "rank": "0"}, np.full(TIMES.size, 1e6))])
    with pytest.raises(InvalidInput, match="holds 1e\\+06 s, which is no step time"):
        steps_of_samples(StepMetric("step_seconds", counted=False, unit=1.0), samples, LabelMap())


GAUGE = StepMetric("step_seconds", counted=False, unit=1.0)


def of_labels(
    values: dict[tuple[tuple[str, str], ...], np.ndarray], name: str = "step_seconds"
) -> SeriesMatrix:
    return matrix([({"__name__": name, **dict(labels)}, held) for labels, held in values.items()])


def test_steps_end_where_a_gauge_that_varied_stands_still() -> None:
    """The exporter of a hung trainer goes on with its last value."""
    hung = TIMES.size - 60
    varied = 1.0 + 0.01 * (np.arange(TIMES.size) % 7)
    varied[hung:] = varied[hung]
    found = steps_of_samples(GAUGE, of_labels({(("rank", rank),): varied for rank in "01"}), LabelMap())
    assert pc.max(found.table["start_time"]).as_py() == pytest.approx(TIMES[hung], abs=2 * INTERVAL)
    assert found.end(END) == END
    assert "shows no new step in the last 2" in found.note


def test_processes_without_ranks_are_no_series_of_one_process() -> None:
    """Counters of different processes are never subtracted from one another."""
    rows = []
    for place, labels in enumerate(histogram([0, 1]).labels):
        held = histogram([0, 1])
        values = held.value[place * TIMES.size : (place + 1) * TIMES.size]
        late = 500.0 if labels["rank"] == "1" else 0.0
        rows.append(({"__name__": labels["__name__"], "instance": f"t-{labels['rank']}:1"}, values + late))
    found = steps_of_samples(StepMetric("step_seconds", counted=True, unit=1.0), matrix(rows), LabelMap())
    assert found.everywhere
    assert found.table.num_rows == pytest.approx(SLOW_FROM + 300 / 1.6, rel=0.03)


def test_series_that_no_label_of_a_process_tells_apart_are_refused() -> None:
    phases = {(("rank", "0"), ("phase", phase)): step_at(TIMES) for phase in ("forward", "total")}
    with pytest.raises(InvalidInput, match="several series of one process, which differ in phase") as refused:
        steps_of_samples(GAUGE, of_labels(phases), LabelMap())
    assert "match" in str(refused.value.hint)


def test_values_that_are_no_times_are_left_out() -> None:
    values = np.where(np.arange(TIMES.size) % 10 == 3, -1.0, 1.0)
    found = steps_of_samples(GAUGE, of_labels({(("rank", "0"),): values}), LabelMap())
    assert pc.min(found.table["step_seconds"]).as_py() == 1.0


def test_a_name_without_a_unit_is_noted() -> None:
    plain = StepMetric("train_step_time", counted=False, unit=None)
    held = of_labels({(("rank", "0"),): step_at(TIMES)}, "train_step_time")
    assert "seconds are assumed" in steps_of_samples(plain, held, LabelMap()).note


class Server:
    """A server with the gauges of a job of each of two namespaces."""

    def series(self, asked: Sequence[str], start: float, end: float) -> list[dict[str, str]]:
        return [
            {"__name__": "step_seconds", "job_name": "same", "namespace": each}
            for each in ("team-a", "team-b")
        ]


@for_each(("namespace", "pods"), [("team-a", []), (None, [("team-a", "same-0")])])
def test_steps_are_of_the_namespace_of_the_job(namespace: str | None, pods: list[tuple[str, str]]) -> None:
    asked: list[str] = []

    def sampled(_: object, queries: Sequence[Query], *__: object, **___: object) -> list[SeriesMatrix]:
        asked.extend(str(query) for query in queries)
        return [of_labels({(("rank", "0"),): step_at(TIMES)})]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer_steps, "read_samples", sampled)
        found, notes = read_steps(
            cast("Prometheus", Server()), "same", ["step_seconds"], pods, namespace, (), LabelMap(),
            TIMES[0], END, lambda *_: None, 10**6,
        )  # fmt: skip
    assert (found is not None, notes) == (True, [])
    assert all('namespace="team-a"' in each for each in asked)


def steps_of(places: Sequence[tuple[str | None, int | None]], start: float = TIMES[0]) -> rca.Window:
    rows = [
        {"rank": rank, "step": step, "start_time": start + step, "step_seconds": 1.0}
        for rank in range(len(places))
        for step in range(30)
    ]
    ranks = [
        {"rank": rank, **({} if node is None else {"node": node}), **({} if gpu is None else {"gpu": gpu})}
        for rank, (node, gpu) in enumerate(places)
    ]
    job = {"job_id": "j", "world_size": len(places), "start": start, "end": start + 30, "ranks": ranks}
    return rca.Window.from_tables(job, steps=rows)


def exporters_of(nodes: Sequence[str], gpus: int = 2) -> rca.Window:
    """Exporters that number the ranks in the order of `nodes`; the clock of a GPU is 100 times its rank."""
    ranks = [
        {"rank": gpus * at + gpu, "node": node, "gpu": gpu}
        for at, node in enumerate(nodes)
        for gpu in range(gpus)
    ]
    rows = [
        {"time": TIMES[0] + second, "rank": each["rank"], "node": each["node"], "device": str(each["gpu"]),
         "name": "DCGM_FI_DEV_SM_CLOCK", "value": 100.0 * float(str(each["rank"]))}
        for each in ranks for second in range(30)
    ]  # fmt: skip
    job = {"job_id": "j", "world_size": len(ranks), "start": TIMES[0], "end": TIMES[0] + 30, "ranks": ranks}
    return rca.Window.from_tables(job, metrics=rows)


def clock_of(window: rca.Window) -> dict[int, float]:
    return {
        row["rank"]: row["value"]
        for row in window.metrics.to_pylist()
        if row["name"] == "DCGM_FI_DEV_SM_CLOCK"
    }


def test_devices_get_the_ranks_that_the_steps_name() -> None:
    exporters = exporters_of(["a", "b"])
    swapped = with_exporters(
        steps_of([("b.example", 0), ("b.example", 1), ("a.example", 0), ("a.example", 1)]), exporters
    )
    assert clock_of(swapped) == {2: 0.0, 3: 100.0, 0: 200.0, 1: 300.0}
    by_gpu = with_exporters(steps_of([("a", 1), ("a", 0), ("b", 1), ("b", 0)]), exporters)
    assert clock_of(by_gpu) == {1: 0.0, 0: 100.0, 3: 200.0, 2: 300.0}
    nodes_only = with_exporters(steps_of([("b", None), ("a", None), ("b", None), ("a", None)]), exporters)
    assert clock_of(nodes_only) == {1: 0.0, 3: 100.0, 0: 200.0, 2: 300.0}


def test_steps_without_machines_get_those_of_the_exporters() -> None:
    joined = with_exporters(steps_of([(None, None)] * 4), exporters_of(["a", "b"]))
    assert [(each.rank, each.node, each.gpu) for each in joined.job.ranks or ()] == [
        (0, "a", 0), (1, "a", 1), (2, "b", 0), (3, "b", 1)
    ]  # fmt: skip


def test_exporters_of_other_machines_or_of_more_ranks_are_refused() -> None:
    with pytest.raises(InvalidInput, match="none of the machines of the steps"):
        with_exporters(steps_of([("x", 0), ("x", 1)]), exporters_of(["a"]))
    with pytest.raises(InvalidInput, match="the steps are of 2 ranks, and exporters report for 4 devices"):
        with_exporters(steps_of([(None, None)] * 2), exporters_of(["a", "b"]))
    with pytest.raises(InvalidInput, match="no calendar time"):
        with_exporters_of(steps_of([("a", 0), ("a", 1)], start=0.0), lambda **_: exporters_of(["a"]))


def trainer_samples(label: str) -> Iterator[str]:
    """OpenMetrics lines of a gauge of step times."""
    yield "# TYPE train_step_seconds gauge"
    for rank in range(N_RANKS):
        for time, seconds in zip(TIMES, step_at(TIMES), strict=True):
            yield f'train_step_seconds{{{label},rank="{rank}",instance="t:1"}} {seconds} {time:.3f}'


def slow_gpus() -> Iterator[str]:
    """A node with eight GPUs; GPU 5 is slow when the steps are."""
    usual = dcgm_samples(
        1, TIMES.tolist(), label=lambda *_: ',exported_pod="llama-worker-0",exported_namespace="ml"'
    )
    clock = -1
    for line in usual:
        if not line.startswith('DCGM_FI_DEV_SM_CLOCK{gpu="5"'):
            yield line
            continue
        clock += 1
        head, value, at = line.rsplit(" ", 2)
        yield f"{head} {1100 if float(at) >= TIMES[0] + SLOW_FROM else value} {at}"


@pytest.mark.system
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
def test_step_times_and_exporters_of_a_real_prometheus_are_priced_together(tmp_path: Path) -> None:
    lines = chain(slow_gpus(), trainer_samples('job_name="llama"'))
    with prometheus(tmp_path / "prometheus", lines) as url:
        window = rca.read_prometheus(url, "llama", since=900, end=END, matchers=['cluster!="x"'])
        diagnosis = rca.diagnose(window)
        untimed = rca.read_prometheus(url, "llama", since=900, end=END, steps=False)
        named = LabelMap(steps=StepTimeSeries(metric="nothing"))
        with pytest.raises(InvalidInput, match="the metric nothing has no step times of the job llama"):
            rca.read_prometheus(url, "llama", since=900, end=END, labels=named)
        switched_off = rca.read_prometheus(url, "llama", since=900, end=END, labels=LabelMap(steps=False))
        # Steps of a file, beside the same exporters.
        rca.Window.from_tables(
            window.job.model_copy(update={"ranks": None}), steps=window.steps
        ).to_directory(tmp_path / "steps")
        asked = ["diagnose", str(tmp_path / "steps"), "--prometheus", url, "--job", "llama"]
        ran = CliRunner().invoke(app, asked)
    assert untimed.steps.num_rows == switched_off.steps.num_rows == 0
    assert (diagnosis.verdict, diagnosis.causes[0].cause, diagnosis.causes[0].ranks) == (
        "fail_slow",
        "gpu_throttling",
        [5],
    )
    assert diagnosis.since is not None
    assert diagnosis.since.timestamp() == pytest.approx(TIMES[0] + SLOW_FROM, abs=2 * INTERVAL)
    # A third of the time steps are 0.6 s longer.
    assert diagnosis.slowdown.seconds_per_step == pytest.approx(
        0.6 * (300 / 1.6) / (600 + 300 / 1.6), rel=0.25
    )
    assert any("steps follow the gauge train_step_seconds" in note for note in diagnosis.quality.notes)
    assert ran.exit_code == 10, ran.output
    assert "rank 5" in ran.output.split("gpu_throttling")[0]
