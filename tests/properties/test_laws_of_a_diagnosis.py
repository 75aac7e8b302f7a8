"""Laws that every diagnosis obeys, whatever the model predicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from alike import assert_same, few, jobs, named, priced, relabelled, reordered, retimed
from hypothesis import given
from hypothesis import strategies as st

import rca
from rca.lab.simulation import corpus_window
from rca.window.encodings import arrow

WINDOWS = Path(__file__).parents[2] / "data" / "windows"
REAL = sorted(path.parent for path in WINDOWS.glob("*/window.json"))
real = pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)


@few
@given(job=jobs, seed=st.integers(0, 1000))
def test_permuting_ranks_permutes_the_answer(make_window, job, seed: int) -> None:
    window = make_window(**job)
    order = np.random.default_rng(seed).permutation(job["n_ranks"])
    new = dict(enumerate(order.tolist()))
    assert_same(rca.diagnose(window), rca.diagnose(relabelled(window, new)), rank=new.__getitem__)


@real
def test_permuting_the_ranks_of_a_real_window_permutes_its_answer(path: Path) -> None:
    window = rca.read_window(path)
    new = dict(enumerate(np.random.default_rng(1).permutation(8).tolist()))
    one, other = rca.diagnose(window), rca.diagnose(relabelled(window, new))
    assert other.failure_mode == one.failure_mode
    assert named(other) == named(one, new.__getitem__)
    first = {key: seconds for key, seconds in priced(one, new.__getitem__).items() if seconds > 0.002}
    assert {key: priced(other).get(key) for key in first} == pytest.approx(first, rel=0.05)


@few
@given(job=jobs, factor=st.sampled_from([0.25, 4.0, 32.0]))
def test_scaling_all_times_scales_the_seconds_and_nothing_else(make_window, job, factor: float) -> None:
    """A power of two, so that not even rounding differs."""
    window = make_window(**job)
    origin = window.job.start
    scaled = retimed(window, lambda time: origin + (time - origin) * factor, factor)
    assert_same(rca.diagnose(window), rca.diagnose(scaled), factor=factor)


@few
@given(job=jobs, seconds=st.sampled_from([-1e8, -3600.0, 7.0, 86_400.0, 5e7]))
def test_shifting_all_clocks_changes_nothing(make_window, job, seconds: float) -> None:
    window = make_window(**job)
    assert_same(rca.diagnose(window), rca.diagnose(retimed(window, lambda time: time + seconds)))


@real
def test_shifting_the_clocks_of_a_real_window_changes_nothing(path: Path) -> None:
    window = rca.read_window(path)
    shifted = retimed(window, lambda time: time + 4096.0)
    assert_same(rca.diagnose(window), rca.diagnose(shifted), rel=0.02)


@few
@given(job=jobs, seed=st.integers(0, 1000))
def test_the_order_of_rows_does_not_matter(make_window, job, seed: int) -> None:
    window = make_window(**job)
    assert_same(rca.diagnose(window), rca.diagnose(reordered(window, seed)))


@real
def test_the_order_of_the_rows_and_samples_of_a_real_window_does_not_matter(path: Path) -> None:
    window = rca.read_window(path)
    assert_same(rca.diagnose(window), rca.diagnose(reordered(window, 3)))


def test_samples_that_come_in_two_batches_are_one_series(real_windows: Path) -> None:
    """An exporter's series split in time and sent last part first, as after a reconnect."""
    window = rca.read_window(real_windows / "cpu-contention-node")
    middle = (window.job.start + window.job.end) / 2
    early = pc.less(window.metrics["time"], middle)
    batches = pa.concat_tables([window.metrics.filter(pc.invert(early)), window.metrics.filter(early)])
    again = rca.Window.from_tables(window.job, window.steps, batches, window.events)
    assert_same(rca.diagnose(window), rca.diagnose(again))


@pytest.mark.system
@few
@given(job=jobs.filter(lambda job: job["late"] and job["n_ranks"] >= 8), twin=st.integers(4, 7))
def test_adding_a_healthy_rank_changes_nothing_material(make_window, job, twin: int) -> None:
    """One more rank, on a node of its own, that does what a healthy rank does."""
    window = make_window(**job)
    one, other = rca.diagnose(window), rca.diagnose(with_a_twin_of(window, twin))
    assert other.failure_mode == one.failure_mode
    assert named(other) == named(one)
    assert other.slowdown.seconds_per_step == pytest.approx(one.slowdown.seconds_per_step, rel=0.1, abs=5e-4)


def with_a_twin_of(window: rca.Window, rank: int) -> rca.Window:
    n_ranks = window.job.world_size
    twin = window.steps.filter(pc.equal(window.steps["rank"], rank))
    twin = twin.set_column(0, "rank", pa.array([n_ranks] * twin.num_rows, pa.int32()))
    job = window.job.model_dump()
    job |= {"world_size": n_ranks + 1, "parallelism": {"data": n_ranks + 1}}
    job["ranks"] = [*job["ranks"], {"rank": n_ranks, "node": "node-of-its-own", "gpu": 0}]
    return rca.Window.from_tables(job, pa.concat_tables([window.steps, twin]))


@real
def test_every_encoding_gives_the_same_diagnosis(path: Path, tmp_path: Path) -> None:
    window = rca.read_window(path)
    expected = lasting(rca.diagnose(window))
    window.to_directory(tmp_path / "window")
    (tmp_path / "window.json").write_bytes(window.to_json())
    (tmp_path / "window.arrow").write_bytes(window.to_arrow())
    for name in ("window", "window.json", "window.arrow"):
        assert lasting(rca.diagnose(rca.read_window(tmp_path / name))) == expected, name
    assert arrow.CONTENT_TYPE.startswith("multipart/")


@real
def test_diagnosing_twice_gives_the_same_answer(path: Path) -> None:
    window = rca.read_window(path)
    one, other = rca.diagnose(window), rca.diagnose(window)
    assert lasting(one) == lasting(other)
    assert one.diagnosis_id != other.diagnosis_id
    assert one.created_at <= other.created_at


def lasting(diagnosis: rca.Diagnosis) -> dict[str, object]:
    """The answer without its id and time."""
    return {
        name: value
        for name, value in diagnosis.to_dict().items()
        if name not in {"diagnosis_id", "created_at"}
    }


@real
def test_the_parts_of_a_real_slowdown_add_up(path: Path) -> None:
    assert_adds_up(rca.diagnose(rca.read_window(path)))


@pytest.mark.parametrize("index", range(24))
def test_the_parts_of_a_simulated_slowdown_add_up(index: int) -> None:
    assert_adds_up(rca.diagnose(corpus_window(77, index).window))


@few
@given(job=jobs)
def test_the_parts_of_any_slowdown_add_up(make_window, job) -> None:
    assert_adds_up(rca.diagnose(make_window(**job)))


def test_the_parts_of_a_slowdown_with_a_cause_add_up(real_windows) -> None:
    """Random jobs may have no cause, so one job has to have some with an interval of positive width."""
    diagnosis = rca.diagnose(rca.read_window(real_windows / "cpu-contention-node"))
    assert diagnosis.causes
    assert all(cause.interval[1] > cause.interval[0] for cause in diagnosis.causes)
    assert_adds_up(diagnosis)


def assert_adds_up(diagnosis: rca.Diagnosis) -> None:
    slowdown = diagnosis.slowdown
    priced = [cause for cause in diagnosis.causes if cause.seconds_per_step is not None]
    if slowdown.seconds_per_step is None:
        assert diagnosis.unexplained_seconds_per_step is None
        assert priced == []
    else:
        parts = sum(cause.seconds_per_step for cause in priced) + diagnosis.unexplained_seconds_per_step
        assert parts == pytest.approx(slowdown.seconds_per_step, abs=1e-9)
        assert slowdown.interval[0] <= slowdown.seconds_per_step <= slowdown.interval[1]
    assert sum(diagnosis.failure_mode_probability.values()) == pytest.approx(1.0)
    for cause in priced:
        assert cause.seconds_per_step >= 0
        assert cause.interval[0] <= cause.seconds_per_step + 1e-9
        assert cause.seconds_per_step <= cause.interval[1] + 1e-9
    if diagnosis.failure_mode == "healthy":
        assert diagnosis.causes == []
        assert diagnosis.stragglers == []
