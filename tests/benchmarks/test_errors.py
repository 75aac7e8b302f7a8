"""Every window is filed under the first reason why nobody could do better, and none under two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.errors import EXCUSES, by_excuse, excuse
from rca.evaluation.answer import Answer
from rca.evaluation.rows import PRODUCT, JudgedRow, judged_row
from rca.simulation.sampling import sample_scenario
from rca.simulation.scenario import Fault, Scenario, Telemetry
from rca.simulation.seeds import simulated_window

FAULT = Fault(cause="gpu_throttling", ranks=(1,))
HUNG = Fault(cause="hang", variant="collective", ranks=(1,))
SEEN, PHASES = Telemetry(exporters=("cpu",)), Telemetry()


def row(seed: int) -> JudgedRow:
    window, label = simulated_window(seed)
    return judged_row(
        f"simulation-{seed}", window, label, signals="all", method=PRODUCT, answer=Answer("healthy")
    )


@pytest.fixture(scope="module")
def slow() -> JudgedRow:
    """A scenario whose fault everybody feels."""
    rows = (row(seed) for seed in range(100))
    return next(each for each in rows if each.judged.mode == "fail_slow" and each.slowdown > 1.2)


@pytest.mark.parametrize(
    ("scenario", "found"),
    [
        (Scenario(faults=(FAULT,), telemetry=SEEN), "one fault, felt, phases and metrics"),
        (Scenario(faults=(FAULT, FAULT), telemetry=SEEN), "two faults at once"),
        (Scenario(faults=(FAULT, FAULT), telemetry=PHASES), "phases only"),
        (Scenario(faults=(HUNG,), telemetry=PHASES), "all ranks wait in one collective"),
        (Scenario(faults=(HUNG,), telemetry=Telemetry(visibility="minimal")), "step times only"),
    ],
)
def test_the_first_reason_is_told(slow: JudgedRow, scenario: Scenario, found: str) -> None:
    assert excuse(slow, scenario) == found
    assert excuse(replace(slow, slowdown=1.05), scenario) == "hardly felt, below 8 %"
    assert excuse(replace(slow, cause="healthy"), scenario) == "healthy"


def test_the_table_counts_every_judged_window_once(slow: JudgedRow) -> None:
    seed = int(slow.window.rsplit("-", 1)[1])
    table = by_excuse([slow, replace(slow, judged=replace(slow.judged, kind=""))])
    own = excuse(slow, sample_scenario(np.random.default_rng(seed)))
    assert [line[:2] for line in table.rows] == [(own, "1")]
    assert own in EXCUSES
