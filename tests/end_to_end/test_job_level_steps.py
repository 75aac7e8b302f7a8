"""One series of step times for the whole job, and exporters on every machine: what most sites have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

import rca
from rca.diagnosis.result import Diagnosis

WINDOWS = Path(__file__).parents[2] / "data" / "windows"


def diagnosed(name: str) -> Diagnosis:
    """The diagnosis of a real window that has step times of rank 0 alone, without phases."""
    window = rca.read_window(WINDOWS / name)
    first = window.steps.filter(pc.equal(window.steps.column("rank"), 0))
    steps = first.select(["rank", "step", "start_time", "step_seconds"])
    return rca.diagnose(replace(window, steps=steps))


@pytest.mark.parametrize(
    ("name", "cause", "ranks"),
    [
        ("cpu-contention-node", "cpu_contention", [2, 3]),
        ("garbage-collection", "runtime_gc", [1]),
        ("nic-rate-limited", "nic_degradation", [4, 5]),
    ],
)
def test_exporters_name_the_ranks_and_the_series_gives_the_cost(
    name: str, cause: str, ranks: list[int]
) -> None:
    answer = diagnosed(name)
    assert (answer.failure_mode, answer.abstained) == ("fail_slow", False)
    assert (answer.causes[0].cause, answer.causes[0].ranks) == (cause, ranks)
    assert answer.slowdown.seconds_per_step > 0


@pytest.mark.parametrize("name", ["healthy", "healthy-short-hiccup"])
def test_a_healthy_job_raises_no_alarm(name: str) -> None:
    answer = diagnosed(name)
    assert answer.failure_mode == "healthy" or answer.abstained
    assert answer.stragglers == []


@pytest.mark.parametrize("name", ["compute-duty-cycle", "slow-dataset", "killed-rank"])
def test_what_no_exporter_shows_stays_open(name: str) -> None:
    answer = diagnosed(name)
    assert answer.abstained
