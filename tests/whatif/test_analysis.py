"""Results of the analysis of operation traces: scenarios, findings, formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic_jobs import Execution, Key, execute, make_job, table_of
from typer.testing import CliRunner

import rca.cli
from rca.errors import InvalidInput
from rca.whatif import WhatIf, scenarios_of, what_if
from rca.whatif.analysis import replay_of
from rca.whatif.long_trace.long_trace import stream_replay
from rca.whatif.report import render, worker_grid, write_heatmap
from rca.whatif.scenario import Scenario
from rca.whatif.timeline import timeline
from rca.window.window import Window
from tests.for_each import for_each

JOB = make_job(pp=2, dp=3, microbatches=4)


def slowed(key: Key, d: int, step: int) -> float:
    return 1.5 if d == 1 and key[2] == 0 and key[0].endswith("compute") else 1.0


@pytest.fixture(scope="module")
def execution() -> Execution:
    return execute(JOB, 6, slow=slowed)


@pytest.fixture(scope="module")
def found(execution: Execution) -> WhatIf:
    return what_if(execution.table, JOB.meta)


def seconds(execution: Execution, *changes: dict[str, Any], base: str = "measured") -> float:
    described = {"name": "x", "base": base, "changes": list(changes)}
    return float(scenarios_of(execution.table, [described], JOB.meta)[0].mean())


def test_the_slow_rank_at_its_peers_median_recovers_most(execution: Execution, found: WhatIf) -> None:
    cured = seconds(execution, {"select": {"ranks": [1]}, "to": "peers"})
    other = seconds(execution, {"select": {"ranks": [2]}, "to": "peers"})
    as_is = seconds(execution)
    assert as_is == pytest.approx(found.no_delay.mean())
    assert as_is - cured > 0.8 * found.seconds_lost_per_step
    assert abs(as_is - other) < 0.1 * found.seconds_lost_per_step


def test_forward_only_and_some_steps_recovers_part(execution: Execution) -> None:
    select = {"ranks": [1], "types": ["forward-compute"], "steps": [2, 3]}
    part = scenarios_of(
        execution.table, [{"changes": []}, {"changes": [{"select": select, "to": "peers"}]}], JOB.meta
    )
    saved = part[0] - part[1]
    assert (saved[[2, 3]] > 0.01).all()
    assert (saved[[0, 1, 4, 5]] == 0).all()


def test_ideal_base_is_the_ideal_job(execution: Execution, found: WhatIf) -> None:
    assert seconds(execution, base="ideal") == pytest.approx(found.ideal.mean(), rel=1e-6)
    assert seconds(execution, {"to": "measured"}, base="ideal") == pytest.approx(found.no_delay.mean())


def test_moving_a_stage_boundary_balances_the_stages() -> None:
    ran = execute(
        JOB, 3, slow=lambda key, d, step: 2.0 if key[2] == 1 and key[0].endswith("compute") else 1.0
    )
    change = {"select": {"stages": [1]}, "to": "move_to_stage", "stage": 0, "value": 0.25}
    described = [{"changes": []}, {"changes": [change]}]
    before, after = scenarios_of(ran.table, described, JOB.meta).mean(axis=1)
    assert after < 0.9 * before


@for_each(
    ("description", "text"),
    [
        ({"changes": [{"to": "faster"}]}, "to"),
        ({"changes": [{"to": "scale"}]}, "needs value"),
        ({"changes": [{"to": "ideal", "value": 1}]}, "takes no value"),
        ({"changes": [{"to": "scale", "value": -1}]}, "negative"),
        ({"changes": [{"to": "ideal", "select": {"types": ["all-to-all"]}}]}, "all-to-all"),
        (
            {"changes": [{"to": "ideal", "select": {"types": ["communication_wait_seconds"]}}]},
            "result of the replay",
        ),
        ({"changes": [{"to": "ideal", "select": {"ranks": [99]}}]}, "rank 99, which the job does not have"),
        ({"changes": [{"to": "ideal", "select": {"nodes": ["n1"]}}]}, "has no nodes of its ranks"),
        ({"changes": [{"to": "move_to_stage", "value": 0.5, "stage": 1}]}, "one selected stage"),
        (
            {"changes": [{"to": "move_to_stage", "value": 0.5, "stage": 7, "select": {"stages": [0]}}]},
            "stage 7",
        ),
        ({"chnages": []}, "chnages"),
    ],
)
def test_impossible_scenarios_are_refused(
    execution: Execution, description: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        scenarios_of(execution.table, [description], JOB.meta)


def test_scenarios_are_equal_after_a_json_round_trip() -> None:
    described = {
        "name": "x",
        "base": "measured",
        "changes": [{"select": {"stages": [0]}, "to": "scale", "value": 0.5}],
    }
    scenario = Scenario.of(described)
    assert Scenario.of(json.loads(json.dumps(scenario.to_dict()))) == scenario


def test_a_slow_worker_is_a_finding(found: WhatIf) -> None:
    assert [(finding.pattern, finding.ranks) for finding in found.findings] == [("worker", (1,))]
    assert found.m_w.exact > 0.8


def test_a_slow_last_stage_is_a_finding() -> None:
    ran = execute(
        JOB, 6, slow=lambda key, d, step: 1.7 if key[2] == 1 and key[0].endswith("compute") else 1.0
    )
    assert "stage" in {finding.pattern for finding in what_if(ran.table, JOB.meta).findings}


def test_uneven_sequence_lengths_are_a_finding() -> None:
    lengths = np.random.default_rng(3).choice([0.6, 1.0, 2.2], size=(8, 3, 4))

    def slow(key: Key, d: int, step: int) -> float:
        return float(lengths[step, d, key[1]]) if key[0].endswith("compute") else 1.0

    answers = what_if(execute(JOB, 8, slow=slow).table, JOB.meta).findings
    (finding,) = [one for one in answers if one.pattern == "sequence_length"]
    assert finding.evidence["pearson_forward_backward"] > 0.9


def test_garbage_collection_is_a_finding() -> None:
    rng = np.random.default_rng(5)
    paused = {(step, int(rng.integers(3)), int(rng.integers(4))) for step in range(8)}

    def slow(key: Key, d: int, step: int) -> float:
        return 6.0 if key[0] == "forward-compute" and key[2] == 0 and (step, d, key[1]) in paused else 1.0

    answers = what_if(execute(JOB, 8, slow=slow).table, JOB.meta).findings
    assert [one.pattern for one in answers] == ["garbage_collection"]
    assert answers[0].evidence["pauses"] == len(paused)


def test_a_healthy_job_has_no_findings() -> None:
    even = execute(JOB, 5)
    answer = what_if(even.table, JOB.meta)
    assert all(finding.pattern not in ("worker", "stage") for finding in answer.findings)
    assert answer.slowdown < 1.1


def test_intervals_hold_the_estimate_and_repeat_with_the_seed(execution: Execution, found: WhatIf) -> None:
    lower, upper = found.intervals["slowdown"]
    assert lower <= found.slowdown <= upper
    assert what_if(execution.table, JOB.meta).intervals == found.intervals
    assert what_if(execution.table, JOB.meta, seed=1).intervals != found.intervals


def test_an_inaccurate_replay_has_a_warning() -> None:
    ran = execute(JOB, 3, delay=0.02)
    assert what_if(ran.table, JOB.meta).warnings


def test_json_is_strict(found: WhatIf) -> None:
    answer = json.loads(found.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert answer["slowdown"] == found.slowdown
    assert len(answer["workers"]) == 6


def test_published_layout_is_sorted_by_slowdown(found: WhatIf) -> None:
    published = json.loads(render(found, "published"))
    for name in ("dp_rank", "stage", "optype"):
        values = list(published[f"blocking_decompose_by_{name}"].values())
        assert values == sorted(values, reverse=True)


def test_the_heat_map_has_a_cell_per_worker(found: WhatIf, tmp_path: Path) -> None:
    grid = worker_grid(found)
    assert grid.shape == (3, 2)
    assert np.unravel_index(int(grid.argmax()), grid.shape) == (1, 0)
    write_heatmap(found, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_the_timeline_shows_the_real_and_the_ideal_step(execution: Execution, found: WhatIf) -> None:
    document = timeline(replay_of(execution.table, JOB.meta), step=2)
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    processes = [event for event in document["traceEvents"] if event["name"] == "process_name"]
    assert len(processes) == 2 * 6
    assert len(slices) == 2 * sum(1 for row in execution.rows if row["step"] == 2)
    ideal = [event for event in slices if event["pid"] > 6]
    assert max(event["ts"] + event["dur"] for event in ideal) == pytest.approx(found.ideal[2] * 1e6, abs=20)
    with pytest.raises(InvalidInput, match="step 99"):
        timeline(replay_of(execution.table, JOB.meta), step=99)


def test_operations_of_a_window_are_replayed(execution: Execution, found: WhatIf) -> None:
    rank, step = (axis.ravel() for axis in np.indices((6, 6)))
    job: dict[str, object] = {
        "format": 1,
        "job_id": "job",
        "world_size": 6,
        "parallelism": {"data": 3, "pipeline": 2},
        "ranks": [{"rank": r, "node": f"n{r // 3}"} for r in range(6)],
        "start": 1.7e9,
        "end": 1.7e9 + 600,
    }
    steps = pa.table({"rank": rank, "step": step, "start_time": 1.7e9 + step, "step_seconds": np.ones(36)})
    rows = [row | {"start_ts": row["start_ts"] + 1.7e9 + 5.0 * row["step"]} for row in execution.rows]  # type: ignore[operator]
    window = Window.from_tables(job, steps, ops=table_of(rows, single=False))
    answer = what_if(window)
    assert answer.source == "operations"
    assert answer.slowdown == pytest.approx(found.slowdown, rel=1e-5)
    described = {
        "changes": [{"select": {"nodes": ["n0"], "kind": "communication"}, "to": "scale", "value": 0.5}]
    }
    assert scenarios_of(window, [described]).mean() < answer.no_delay.mean()


def test_reading_in_blocks_gives_the_same_results(
    execution: Execution, found: WhatIf, tmp_path: Path
) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(execution.table, path, row_group_size=100)
    shares: list[float] = []
    answer = what_if(stream_replay(path, JOB.meta, progress=shares.append))
    np.testing.assert_array_equal(answer.no_delay, found.no_delay)
    np.testing.assert_array_equal(answer.workers.seconds, found.workers.seconds)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_the_command_prints_every_format(execution: Execution, found: WhatIf, tmp_path: Path) -> None:
    trace, meta = tmp_path / "trace.parquet", tmp_path / "meta.yaml"
    pq.write_table(execution.table, trace)
    meta.write_text("\n".join(f"{name}: {size}" for name, size in JOB.meta.items()))

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(rca.cli.app, ["what-if", str(trace), "--meta", str(meta), *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert json.loads(run("--format", "json"))["slowdown"] == found.slowdown
    assert json.loads(run("--format", "published"))["blocking_slowdown"] == found.slowdown
    assert f"{found.slowdown:.4f}" in run()
    drawn = (tmp_path / "map.png", tmp_path / "line.json")
    run("--heatmap", str(drawn[0]), "--timeline", str(drawn[1]), "--step", "1")
    assert all(path.stat().st_size > 1000 for path in drawn)


@pytest.mark.parametrize("content", [b"PAR1 damaged", b"", b"hello"])
def test_the_command_refuses_files_that_are_no_trace(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(content)
    done = CliRunner().invoke(rca.cli.app, ["what-if", str(path), "--format", "json"])
    assert done.exit_code == 2
    assert json.loads(done.stderr)["code"] in (
        "invalid-trace",
        "invalid-window",
        "source-error",
        "invalid-input",
    )
