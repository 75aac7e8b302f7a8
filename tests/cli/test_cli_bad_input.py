"""What the service refuses with 4xx the command line refuses with 2 and a message, never a traceback."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from bad_windows import REFUSED, WHOLE, window_document

import rca
from tests.for_each import for_each

Run = Callable[..., Any]


@for_each("command", ["diagnose", "validate"])
@for_each("name", REFUSED)
def test_a_malformed_window_is_refused_with_its_place(rca_command: Run, command: str, name: str) -> None:
    case = REFUSED[name]
    ran = rca_command(command, "-", stdin=case.body)
    assert (ran.code, ran.out) == (2, "")
    place = case.table if case.column is None else f"{case.table}.{case.column}"
    assert ran.err.startswith(f"error (invalid-window) in {place}")
    assert "\n  expected: " in ran.err
    assert "Traceback" not in ran.err


def test_the_first_rows_are_shown(rca_command: Run) -> None:
    ran = rca_command("diagnose", "-", stdin=REFUSED["negative duration"].body)
    assert (
        "offending rows: 1, the first of them:\n    row=3, rank=3, step=0, forward_seconds=-0.01\n" in ran.err
    )


def test_with_json_the_error_is_json_too(rca_command: Run) -> None:
    ran = rca_command("diagnose", "-", "--format", "json", stdin=REFUSED["negative duration"].body)
    told = json.loads(ran.err)
    assert (told["code"], told["table"], told["column"]) == ("invalid-window", "steps", "forward_seconds")
    assert told["rows"][0]["row"] == 3


def test_an_empty_file_is_refused(rca_command: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.json").touch()
    ran = rca_command("diagnose", tmp_path / "empty.json")
    assert ran.code == 2
    assert "empty" in ran.err


def test_a_path_that_is_not_there_is_refused(rca_command: Run) -> None:
    ran = rca_command("diagnose", "no/such/window")
    assert ran.code == 2
    assert ran.err.startswith("error (source-error): no/such/window: ")
    assert "hint: give the folder or file of a window; `rca sources` lists" in ran.err


@pytest.mark.parametrize("command", ["diagnose", "validate", "plan", "what-if"])
def test_a_pipe_is_refused_at_once(rca_command: Run, tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    ran = rca_command(command, tmp_path / "pipe")
    assert ran.code == 2
    assert "it is a pipe, not a regular file" in ran.err
    assert "give -: PROGRAM | rca diagnose -" in ran.err


def test_an_option_that_names_a_pipe_is_refused_at_once(rca_command: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for option in ("--earlier", "--topology", "--priors", "--node-odds"):
        ran = rca_command("diagnose", "data/windows/healthy", option, tmp_path / "pipe")
        assert ran.code == 2
        assert "is a pipe" in ran.err


def test_a_directory_without_a_window_is_refused(rca_command: Run, tmp_path: Path) -> None:
    ran = rca_command("diagnose", tmp_path)
    assert ran.code == 2
    assert ran.err.startswith("error (")


@pytest.mark.parametrize("body", [b" " * 20_000, gzip.compress(b" " * 20_000)], ids=["plain", "gzip"])
def test_a_window_beyond_the_limit_is_refused(
    rca_command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: bytes
) -> None:
    monkeypatch.setattr("rca.commands.diagnose.MAX_BYTES", 10_000)
    (tmp_path / "large.json").write_bytes(body)
    for ran in (rca_command("diagnose", tmp_path / "large.json"), rca_command("diagnose", "-", stdin=body)):
        assert ran.code == 2
        assert ran.err.startswith("error (too-large): ")


@pytest.mark.parametrize(("n_ranks", "n_steps"), [(1, 6), (4, 1)])
def test_the_smallest_windows_are_diagnosed(rca_command: Run, n_ranks: int, n_steps: int) -> None:
    ran = rca_command(
        "diagnose", "-", "--format", "json", stdin=orjson.dumps(window_document(n_ranks, n_steps))
    )
    assert ran.code in (0, 30)
    assert json.loads(ran.out)["stragglers"] == []


def test_terminal_escapes_in_a_refused_value_are_not_repeated(rca_command: Run) -> None:
    document = window_document()
    document["job"]["world_size"] = "\x1b[31m4"
    ran = rca_command("diagnose", "-", stdin=orjson.dumps(document))
    assert ran.code == 2
    assert "\x1b" not in ran.err


def test_a_log_on_standard_input_is_diagnosed(rca_command: Run) -> None:
    ran = rca_command("diagnose", "-", stdin=b"srun: error: gpu02: task 9: Killed\n")
    assert ran.code == 20
    assert "rank 9" in ran.out
    refused = rca_command("diagnose", "-", stdin=b"hello\n")
    assert refused.code == 2
    assert "which is no known encoding" in refused.err


def test_a_valid_window_is_summarized(rca_command: Run) -> None:
    ran = rca_command("validate", "-", stdin=WHOLE)
    assert ran.code == 0
    assert ran.out.startswith("valid: job job-1, 4 ranks, 6 steps, 1.2 s\n")
    assert "24 samples of 1 metric" in ran.out


@pytest.mark.parametrize("name", ["window.json", "window.arrow"])
def test_a_valid_window_is_written_as_one_file(rca_command: Run, tmp_path: Path, name: str) -> None:
    given = rca.read_window(WHOLE)
    given.to_directory(tmp_path / "window")
    ran = rca_command("validate", str(tmp_path / "window"), "--output", str(tmp_path / name))
    assert ran.code == 0
    assert rca.read_window(tmp_path / name).to_json() == given.to_json()
    assert rca_command("validate", "-", "--output", str(tmp_path), stdin=WHOLE).code == 2
