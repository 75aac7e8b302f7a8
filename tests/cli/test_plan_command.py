"""`rca plan`: a plan for a window or a stored diagnosis."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rca

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_window: Any) -> Path:
    """A window of a job with a slow loader, and its diagnosis."""
    found = tmp_path_factory.mktemp("planned")
    window = make_window(late={5: 0.05}, phase="data_loading_seconds")
    window.to_directory(found / "window")
    (found / "answer.json").write_text(rca.diagnose(window).to_json())
    return found


def test_the_plan_lists_gain_cost_and_instruction(rca_command: Run, folder: Path) -> None:
    ran = rca_command("plan", folder / "window")
    assert ran.code == 0
    assert ran.out.startswith("# add_loader_workers: it costs no restart")
    assert "| add_loader_workers |" in ran.out
    assert "raise the number of loader workers" in ran.out
    assert "Risk: " in ran.out
    assert "drain_node" not in ran.out


def test_a_terminal_of_80_columns_shows_whole_names_and_no_empty_column(
    rca_command: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = rca_command("plan", folder / "window", "--format", "table")
    assert "│ add_loader_workers" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "1.00" not in ran.out


def test_verbose_says_why_not(rca_command: Run, folder: Path) -> None:
    ran = rca_command("plan", folder / "window", "--verbose", "--format", "table")
    assert "not now: drain_node: helps only against gpu_throttling" in ran.out


def test_json_is_the_plan(rca_command: Run, folder: Path) -> None:
    ran = rca_command("plan", folder / "window", "--format", "json")
    found = json.loads(ran.out)
    assert found["first"] == "add_loader_workers"
    assert {each["action"] for each in found["options"]} >= {"add_loader_workers"}


def test_a_stored_diagnosis_has_the_same_options(rca_command: Run, folder: Path) -> None:
    ran = [rca_command("plan", folder / name, "--format", "json") for name in ("window", "answer.json")]
    whole, alone = (json.loads(each.out)["options"] for each in ran)
    assert [(each["action"], each["seconds_per_step_saved"]) for each in alone] == [
        (each["action"], each["seconds_per_step_saved"]) for each in whole
    ]


def test_options_replace_values_of_the_site_file(rca_command: Run, tmp_path: Path) -> None:
    waiting = [(rank, "world", "idle" if rank == 5 else "waiting", 50) for rank in range(8)]
    table = pa.table(
        {
            "rank": [row[0] for row in waiting],
            "group": [row[1] for row in waiting],
            "state": [row[2] for row in waiting],
            "sequence": [row[3] if row[2] == "waiting" else None for row in waiting],
            "waiting_since": [1e9 + 100 if row[2] == "waiting" else None for row in waiting],
        }
    )
    job = {"job_id": "j", "world_size": 8, "start": 1e9, "end": 1e9 + 600}
    rca.Window.from_tables(job, collectives=table).to_directory(tmp_path / "window")
    (tmp_path / "site.yaml").write_text("restart_seconds: 100\ncheckpoint_seconds: 50\n")
    site = ("--site", tmp_path / "site.yaml", "--format", "json")
    for more, cost in (((), 125.0), (("--restart-seconds", "10"), 35.0)):
        ran = rca_command("plan", tmp_path / "window", *site, *more)
        found = json.loads(ran.out)
        assert found["first"] == "restart_from_checkpoint"
        assert found["options"][0]["one_off_seconds"] == cost


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("restart_seconds: [", "is not YAML"),
        ("- 1", "has no fields"),
        ("restart: 5", "restart"),
        ("restart_seconds: soon", "restart_seconds"),
    ],
)
def test_a_wrong_site_is_refused_by_name(
    rca_command: Run, folder: Path, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "site.yaml").write_text(content)
    ran = rca_command("plan", folder / "window", "--site", tmp_path / "site.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "hint: " in ran.err


def test_half_a_diagnosis_is_refused(rca_command: Run, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text('{"diagnosis_id": "1"')
    ran = rca_command("plan", tmp_path / "answer.json")
    assert (ran.code, ran.out) == (2, "")
    assert "no whole diagnosis" in ran.err


def test_a_piped_diagnosis_and_a_piped_window_are_planned(rca_command: Run, folder: Path) -> None:
    answer = (folder / "answer.json").read_bytes()
    window = rca.read_window(folder / "window").to_json()
    for content in (answer, window):
        ran = rca_command("plan", "-", "--format", "json", stdin=content)
        assert json.loads(ran.out)["first"] == "add_loader_workers"
    ran = rca_command("plan", "-", stdin=b'{"diagnosis_id": 1}')
    assert ran.code == 2
    assert "standard input is no whole diagnosis" in ran.err


def test_a_topology_goes_with_a_window_only(rca_command: Run, folder: Path) -> None:
    file = folder / "topology.conf"
    file.write_text("SwitchName=leaf1 Nodes=node-[0-3]\n")
    assert rca_command("plan", folder / "window", "--topology", file).code == 0
    ran = rca_command("plan", folder / "answer.json", "--topology", file)
    assert ran.code == 2
    assert "needs no bundle and no topology" in ran.err
