"""`rca runbook`: the runbook of a cause, filled from a diagnosis or a window."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rca
from rca.window.causes import SPECS

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_window: Any) -> Path:
    """A window of a job with a slow loader, and its diagnosis."""
    found = tmp_path_factory.mktemp("runbooks")
    window = make_window(late={5: 0.05}, phase="data_loading_seconds")
    window.to_directory(found / "window")
    (found / "answer.json").write_text(rca.diagnose(window).to_json())
    return found


def test_all_runbooks_are_listed(rca_command: Run) -> None:
    assert [line.split()[0] for line in rca_command("runbook", "--list").out.splitlines()] == list(SPECS)
    listed = json.loads(rca_command("runbook", "--list", "--format", "json").out)
    assert [each["cause"] for each in listed] == list(SPECS)


@pytest.mark.parametrize(
    ("format_", "begin"),
    [("text", "Runbook hang: "), ("markdown", "# Runbook hang: "), ("json", '{\n  "cause": "hang"')],
)
def test_a_runbook_is_written_in_each_format(rca_command: Run, format_: str, begin: str) -> None:
    ran = rca_command("runbook", "hang", "--format", format_, "--platform", "kubernetes")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(begin)
    assert "kubectl exec --namespace NAMESPACE POD" in ran.out


@pytest.mark.parametrize("name", ["window", "answer.json"])
def test_a_diagnosis_fills_the_runbook_of_its_first_cause(rca_command: Run, folder: Path, name: str) -> None:
    ran = rca_command("runbook", "--diagnosis", folder / name, "--format", "json")
    found = json.loads(ran.out)
    assert found["cause"] == "data_loader_stall"
    assert "rank 5" in found["places"][0]
    assert found["plan"][0].startswith("add_loader_workers: saves ")


def test_a_site_replaces_runbooks(rca_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "common.yaml").write_text("platform: slurm\nvalues: {workload_contact: '#training'}\n")
    monkeypatch.setenv("RCA_RUNBOOKS", str(tmp_path))
    ran = rca_command("runbook", "runtime_gc")
    assert "Commands for: slurm." in ran.out
    assert "#training" in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gremlins",), "there is no cause 'gremlins'"),
        ((), "give a cause or --diagnosis"),
        (("hang", "--diagnosis", "none.json"), "hint: give the path of the window, or write the file first"),
        (("hang", "--runbooks", "none"), "none: cannot be read"),
    ],
)
def test_what_is_wrong_is_said(
    rca_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = rca_command("runbook", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "Traceback" not in ran.err
