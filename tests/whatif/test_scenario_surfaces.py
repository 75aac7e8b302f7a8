"""Scenarios and workers per step over the command line and over HTTP."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient
from synthetic_jobs import execute, make_job
from test_phase_analysis import window_of
from test_what_if_endpoint import PARQUET, WINDOW
from typer.testing import CliRunner

import rca.cli
from rca.errors import InvalidInput, TooLarge
from rca.whatif import scenarios_of, what_if
from rca.whatif.analysis import MAX_SCENARIOS, analysed_scenarios, described_all
from rca.whatif.report import Extras, document
from rca.window.encodings import arrow
from rca_api.what_if import work
from tests.for_each import for_each

pytestmark = pytest.mark.system

JOB = make_job(pp=2, dp=3, microbatches=4)
TABLE = execute(JOB, 4, slow=lambda key, d, step: 1.5 if (d, key[2]) == (1, 0) else 1.0).table
SLOW_RANK = {"name": "cured", "changes": [{"select": {"ranks": [1]}, "to": "peers"}]}
LINKS = {"name": "links", "changes": [{"select": {"kind": "communication"}, "to": "scale", "value": 0.5}]}


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, Path]:
    pq.write_table(TABLE, tmp_path / "trace.parquet")
    return str(tmp_path / "trace.parquet"), tmp_path / "scenarios.json"


def trace_body() -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink)
    return sink.getvalue()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(rca.cli.app, ["what-if", *arguments])


def expected() -> list[dict[str, Any]]:
    described = described_all([SLOW_RANK, LINKS])
    result, seconds = analysed_scenarios(TABLE, described)
    extras = Extras(scenarios=described, scenario_seconds=seconds)
    outcomes: list[dict[str, Any]] = document(result, extras)["scenarios"]
    return outcomes


def test_outcomes_are_means_over_the_replayed_steps() -> None:
    found, outcomes = what_if(TABLE), expected()
    for outcome, seconds in zip(outcomes, scenarios_of(TABLE, [SLOW_RANK, LINKS]), strict=True):
        assert outcome["step_seconds"] == pytest.approx(seconds.mean())
        saved = found.no_delay.mean() - seconds.mean()
        assert outcome["seconds_saved_per_step"] == pytest.approx(saved)
        assert outcome["share_of_loss"] == pytest.approx(saved / found.seconds_lost_per_step)
    assert outcomes[0]["share_of_loss"] > 0.8


def test_outcomes_of_phases_leave_out_the_steps_the_analysis_leaves_out() -> None:
    own = np.full((4, 12), 1.0)
    own[:, 0] = 20.0
    result, seconds = analysed_scenarios(window_of(own), [{}])
    assert result.steps.tolist() == list(range(1, 12))
    np.testing.assert_allclose(seconds[0], result.no_delay)


def test_the_command_answers_scenarios(paths: tuple[str, Path]) -> None:
    trace, scenarios = paths
    scenarios.write_text(json.dumps([SLOW_RANK, LINKS]))
    done = run(trace, "--scenarios", str(scenarios), "--format", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["scenarios"] == expected()
    table = run(trace, "--scenarios", str(scenarios)).stdout
    assert any(line.startswith("cured ") for line in table.splitlines())


def test_workers_per_step_have_one_row_per_worker_and_one_number_per_step(paths: tuple[str, Path]) -> None:
    found = what_if(TABLE)
    answer = json.loads(run(paths[0], "--worker-steps", "--format", "json").stdout)
    by_worker = answer["steps"]["by_worker"]
    assert list(by_worker) == [str(rank) for rank in found.workers.rank]
    np.testing.assert_allclose(list(by_worker.values()), found.workers.seconds / found.ideal, atol=1e-6)
    assert "by_worker" not in json.loads(run(paths[0], "--format", "json").stdout)["steps"]


def test_more_workers_per_step_than_an_answer_holds_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rca.whatif.report.MAX_NUMBERS", 23)
    with pytest.raises(TooLarge, match="6 workers in 4 steps are 24 numbers; at most 23"):
        document(what_if(TABLE), Extras(worker_steps=True))


@for_each(
    ("options", "text"),
    [
        (["--seed", "-1"], "greater than or equal to 0"),
        (["--step", "2"], "--step needs a timeline"),
        (["--worker-steps"], "json format"),
        (["--scenarios", "no-such-file.json"], "cannot read no-such-file.json"),
        (["--scenarios", __file__], "is not JSON"),
        (["--timeline", "unwritten.json", "--step", "99"], "step 99 was not replayed"),
    ],
)
def test_options_without_effect_are_refused(paths: tuple[str, Path], options: list[str], text: str) -> None:
    done = run(paths[0], *options)
    assert done.exit_code == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_sizes_with_a_window_are_refused(tmp_path: Path) -> None:
    (tmp_path / "window.json").write_text(json.dumps(WINDOW))
    (tmp_path / "meta.yaml").write_text("dp_size: 2")
    done = run(str(tmp_path / "window.json"), "--meta", str(tmp_path / "meta.yaml"))
    assert done.exit_code == 2
    assert "a window has its own sizes" in done.stderr


def test_a_negative_seed_is_refused_in_python_too() -> None:
    with pytest.raises(InvalidInput, match="seed is -1"):
        what_if(TABLE, seed=-1).intervals  # noqa: B018  (computed when first read)


@pytest.mark.parametrize(
    ("scenarios", "text"),
    [
        ({"name": "x"}, "must be a list"),
        ([{}, {"changes": [{"to": "faster"}]}], r"scenarios\[1\]: changes.0.to"),
        ([{"changes": [{"to": "ideal"}] * 101}], "more than 100 changes"),
        ([{}] * (MAX_SCENARIOS + 1), "10,001 scenarios"),
    ],
)
def test_lists_of_scenarios_are_checked_by_position(scenarios: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        described_all(scenarios)


@for_each(
    ("change", "place"),
    [
        ({"select": {"ranks": ["1"]}, "to": "peers"}, "changes.0.select.ranks.0"),
        ({"select": {"stages": [True]}, "to": "peers"}, "changes.0.select.stages.0"),
        ({"select": {"steps": [1, "2"]}, "to": "peers"}, "changes.0.select.steps.1"),
        ({"to": "scale", "value": "0.5"}, "changes.0.value"),
        ({"to": "scale", "value": True}, "changes.0.value"),
        ({"select": {"stages": [0]}, "to": "move_to_stage", "value": 0.5, "stage": "1"}, "changes.0.stage"),
    ],
)
def test_texts_and_booleans_are_no_numbers_of_a_scenario(change: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidInput, match=f"{place}: needs a number"):
        described_all([{"changes": [change]}])


def parts(**held: tuple[str, bytes, str]) -> Any:
    return {"files": held}


def test_scenarios_with_a_bare_trace_are_answered_over_http(client: TestClient) -> None:
    sent = parts(
        trace=("trace.parquet", trace_body(), PARQUET["Content-Type"]),
        scenarios=("scenarios.json", json.dumps([SLOW_RANK, LINKS]).encode(), "application/json"),
    )
    answer = client.post("/v1/what-if", **sent)
    assert answer.status_code == 200, answer.text
    assert answer.json()["scenarios"] == expected()


def test_scenarios_inside_and_next_to_a_window_are_answered_alike(client: TestClient) -> None:
    scenarios = [{"name": "even", "changes": [{"select": {"ranks": [0]}, "to": "peers"}]}]
    inside = client.post("/v1/what-if", json=WINDOW | {"scenarios": scenarios})
    assert inside.status_code == 200, inside.text
    assert inside.json()["scenarios"][0]["seconds_saved_per_step"] == pytest.approx(0.1)
    window = window_of(np.ones((4, 6)) + 0.1 * np.arange(4)[:, None])
    body = window.to_arrow()
    name = f'--{arrow.BOUNDARY}\r\nContent-Disposition: form-data; name="scenarios"\r\n\r\n'
    beside = client.post(
        "/v1/what-if",
        content=name.encode() + json.dumps(scenarios).encode() + b"\r\n" + body,
        headers={"Content-Type": arrow.CONTENT_TYPE},
    )
    assert beside.status_code == 200, beside.text
    ours, (theirs,) = beside.json()["scenarios"][0], scenarios_of(window, scenarios)
    assert ours["step_seconds"] == pytest.approx(theirs.mean())


def test_thousands_of_scenarios_are_answered_at_once(client: TestClient) -> None:
    many = [
        {"name": f"s{k}", "changes": [{"select": {"ranks": [k % 6]}, "to": "scale", "value": 0.5 + k / 4000}]}
        for k in range(2000)
    ]
    sent = parts(
        trace=("t", trace_body(), PARQUET["Content-Type"]),
        scenarios=("s", json.dumps(many).encode(), "application/json"),
    )
    outcomes = client.post("/v1/what-if", params={"per_step": False}, **sent).json()["scenarios"]
    assert [one["name"] for one in outcomes] == [one["name"] for one in many]
    alone = scenarios_of(TABLE, [many[1234]])[0].mean()
    assert outcomes[1234]["step_seconds"] == pytest.approx(alone, rel=1e-12)


@for_each(
    ("scenarios", "code", "text"),
    [
        (b"[", "invalid-input", "not JSON"),
        (b"{}", "invalid-input", "must be a list"),
        (b'[{"changes": [{"to": "ideal", "select": {"stages": [9]}}]}]', "invalid-input", "names stage 9"),
        (
            b'[{"changes": [{"to": "ideal", "select": {"nodes": ["n"]}}]}]',
            "invalid-input",
            "no nodes of its ranks",
        ),
        (b"[" + b"{}," * 10_000 + b"{}]", "too-large", "10,001 scenarios"),
    ],
)
def test_invalid_scenarios_are_named_problems(
    client: TestClient, scenarios: bytes, code: str, text: str
) -> None:
    sent = parts(
        trace=("t", trace_body(), PARQUET["Content-Type"]), scenarios=("s", scenarios, "application/json")
    )
    answer = client.post("/v1/what-if", **sent)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code
    assert text in answer.json()["detail"]


def test_one_request_has_a_limit_of_replayed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit is in the worker process, out of reach of a test, so the check is called directly.
    monkeypatch.setattr(work, "MAX_REPLAYED", 2 * TABLE.num_rows)
    work.refuse_long_replays(TABLE, 2)
    with pytest.raises(TooLarge, match="3 scenarios of"):
        work.refuse_long_replays(TABLE, 3)


@pytest.mark.parametrize("query", [{"form": "published"}, {"per_step": False}])
def test_workers_per_step_need_the_steps(client: TestClient, query: dict[str, Any]) -> None:
    answer = client.post(
        "/v1/what-if", params=query | {"worker_steps": True}, content=trace_body(), headers=PARQUET
    )
    assert answer.json()["code"] == "invalid-input"


def test_workers_per_step_over_http(client: TestClient) -> None:
    answer = client.post(
        "/v1/what-if", params={"worker_steps": True}, content=trace_body(), headers=PARQUET
    ).json()
    assert {len(row) for row in answer["steps"]["by_worker"].values()} == {4}
    assert len(answer["steps"]["by_worker"]) == len(answer["workers"])


def test_unknown_parts_next_to_a_trace_are_refused(client: TestClient) -> None:
    sent = parts(trace=("t", trace_body(), PARQUET["Content-Type"]), job=("j", b"{}", "application/json"))
    assert "besides a bare trace only the part" in client.post("/v1/what-if", **sent).json()["detail"]


def test_a_doubled_column_over_http_is_a_named_problem(client: TestClient) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE.append_column("stage", TABLE.column("stage")), sink)
    answer = client.post("/v1/what-if", content=sink.getvalue().to_pybytes(), headers=PARQUET)
    assert answer.json()["code"] == "invalid-trace"
