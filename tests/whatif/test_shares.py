"""Shares of the loss and their intervals; the published layout is for operation traces only."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from synthetic_jobs import Key, execute, make_job, rows_of, run, table_of
from typer.testing import CliRunner

import rca.cli
from rca.errors import InvalidInput
from rca.whatif import bootstrap
from rca.whatif.analysis import what_if
from rca.whatif.bootstrap import StepBootstrap, loses
from rca.whatif.decompose import share_of_loss
from rca.whatif.report import render
from rca.whatif.result import WhatIf
from rca.window.window import Window

JOB = make_job(pp=2, dp=3, microbatches=4)


def slow_rank(key: Key, d: int, step: int) -> float:
    return 1.5 if (d, key[2]) == (1, 0) and key[0].endswith("compute") else 1.0


@pytest.fixture(scope="module")
def slowed() -> WhatIf:
    return what_if(execute(JOB, n_steps=10, slow=slow_rank).table, JOB.meta)


def even_job() -> WhatIf:
    """Every operation of a type takes the same time everywhere: nothing is lost."""
    times = execute(JOB, 1).times[0][0]
    usual = {key: next(value for other, value in times.items() if other[0] == key[0]) for key in times}
    rows = [row for step in range(4) for row in rows_of(JOB, step, *run(JOB, [usual] * JOB.dp))]
    return what_if(table_of(rows), JOB.meta)


def test_no_loss_has_no_shares() -> None:
    found = even_job()
    assert found.slowdown == pytest.approx(1.0, abs=1e-3)
    assert found.m_w.exact is found.m_w.published is found.m_s.exact is None
    plain = json.loads(found.to_json())
    assert plain["m_w"] == {"published": None, "exact": None, "ranks": list(found.m_w.ranks)}
    assert found.published()["Mw"] is found.published()["Ms"] is None
    assert "no clear loss, no clear loss" in render(found, "table")
    assert not {"m_w", "m_s"} & set(found.intervals)
    assert found.findings == ()


@pytest.mark.parametrize(
    ("lost", "clear"),
    [
        ([0.1, 0.12, 0.09, 0.11], True),
        ([-0.1, -0.12, -0.09, -0.11], False),
        ([0.0004, 0.0004, 0.0004, 0.0004], False),
        ([0.3, -0.25, 0.28, -0.27, 0.02, -0.05], False),
    ],
)
def test_a_loss_must_be_clear_of_noise(lost: list[float], clear: bool) -> None:
    ideal = np.full(len(lost), 1.0)
    assert loses(ideal + lost, ideal) is clear
    share = share_of_loss(ideal + lost, ideal, ideal + np.array(lost) / 4)
    assert share == (pytest.approx(0.75) if clear else None)


def test_shares_and_data_ranks_have_intervals(slowed: WhatIf) -> None:
    for name, value in (("m_w", slowed.m_w.exact), ("m_s", slowed.m_s.exact)):
        lower, upper = slowed.intervals[name]
        assert value is not None
        assert lower <= value <= upper
        assert lower < upper
    slowdowns = slowed.by_data_rank.slowdown(slowed.ideal)
    for rank, slowdown in slowdowns.items():
        lower, upper = slowed.intervals[f"data_rank:{rank}"]
        assert lower <= slowdown <= upper
    # The interval of the slow data rank is apart from the others.
    assert slowed.intervals["data_rank:1"][0] > slowed.intervals["data_rank:0"][1]
    assert json.loads(slowed.to_json())["intervals"]["data_rank:1"] == list(slowed.intervals["data_rank:1"])


def test_intervals_cover_the_true_ratio() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for seed in range(200):
        ideal = 1 + 0.1 * rng.random(40)
        above = ideal * rng.normal(1.2, 0.1, 40)
        lower, upper = StepBootstrap.of(40, seed).ratio(above, ideal)
        covered += lower <= 1.2 <= upper
    assert 165 <= covered <= 195


def test_long_traces_are_resampled_in_runs() -> None:
    ideal = np.ones(50_000)
    above = 1.2 + 0.1 * np.sin(np.arange(50_000))
    drawn = StepBootstrap.of(50_000, 0)
    assert drawn.counts.shape == (1000, 1000)
    lower, upper = drawn.ratio(above, ideal)
    assert lower < above.mean() < upper < lower + 0.01


def phases_only() -> Window:
    n_steps, n_ranks = 12, 4
    rank, step = (part.ravel() for part in np.meshgrid(np.arange(n_ranks), np.arange(n_steps), indexing="ij"))
    columns = {
        "rank": rank,
        "step": step,
        "start_time": 1.7e9 + step,
        "step_seconds": np.ones(rank.size),
        "forward_seconds": 0.3 + 0.2 * (rank == 2),
    }
    job: dict[str, object] = {
        "format": 1,
        "job_id": "phases",
        "world_size": n_ranks,
        "ranks": [{"rank": r, "node": "n0"} for r in range(n_ranks)],
        "start": 1.7e9,
        "end": 1.7e9 + 600,
    }
    return Window.from_tables(job, pa.table(columns))


def test_the_published_layout_is_for_operation_traces(tmp_path: Path) -> None:
    window = phases_only()
    found = what_if(window)
    with pytest.raises(InvalidInput, match="known by its phases only"):
        found.published()
    window.to_directory(tmp_path / "w")
    printed = CliRunner().invoke(rca.cli.app, ["what-if", str(tmp_path / "w"), "--format", "published"])
    assert printed.exit_code != 0
    assert "known by its phases only" in printed.stderr
    assert (
        json.loads(CliRunner().invoke(rca.cli.app, ["what-if", str(tmp_path / "w"), "-f", "json"]).stdout)[
            "source"
        ]
        == "phases"
    )


def test_intervals_of_many_components_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 1.0 + np.random.default_rng(0).random((7, 30))
    drawn, ideal = StepBootstrap.of(30, 0), np.ones(30)
    whole = drawn.ratios(seconds, ideal)
    monkeypatch.setattr(bootstrap, "TOGETHER", 3)
    assert drawn.ratios(seconds, ideal) == [pytest.approx(each) for each in whole]


def test_memory_of_intervals_does_not_grow_with_the_components() -> None:
    seconds = np.ones((20_000, 2))
    drawn = StepBootstrap.of(2, 0)
    tracemalloc.start()
    drawn.ratios(seconds, np.ones(2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
