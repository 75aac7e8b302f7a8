"""`rca diagnose`: formats, exit codes, pipes, files."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bad_windows import WHOLE

import rca
from tests.for_each import for_each
from tests.shifted_windows import shifted

WINDOWS = Path("data/windows")
SLOW = WINDOWS / "cpu-contention-node"
Run = Callable[..., Any]


@for_each(
    ("mode", "abstained", "code"),
    [
        ("healthy", False, 0),
        ("fail_slow", False, 10),
        ("fail_stop", False, 20),
        ("fail_slow", True, 30),
        ("healthy", True, 30),
    ],
)
def test_the_exit_code_is_the_verdict(
    rca_command: Run, monkeypatch: pytest.MonkeyPatch, mode: str, abstained: bool, code: int
) -> None:
    answer = rca.diagnose(rca.read_window(SLOW)).model_copy(
        update={"failure_mode": mode, "abstained": abstained}
    )
    monkeypatch.setattr("rca.diagnose", lambda window, **_: answer)
    assert rca_command("diagnose", SLOW).code == code


@for_each("path", sorted(path.parent for path in WINDOWS.glob("*/window.json")), ids=lambda p: p.name)
def test_real_windows_get_the_answer_the_library_gives(rca_command: Run, path: Path) -> None:
    ran = rca_command("diagnose", path, "--format", "json")
    here = rca.diagnose(rca.read_window(path))
    told = json.loads(ran.out)
    assert told["failure_mode"] == here.failure_mode
    assert [group["ranks"] for group in told["stragglers"]] == [group.ranks for group in here.stragglers]
    assert ran.err == ""


@for_each(
    ("chosen", "start"),
    [("json", "{"), ("markdown", "# "), ("html", "<!doctype html>"), ("table", "FAIL-SLOW"), ("slack", "{")],
)
def test_every_format_is_written(rca_command: Run, chosen: str, start: str) -> None:
    assert rca_command("diagnose", SLOW, "--format", chosen).out.startswith(start)


def test_a_pipe_gets_markdown_and_a_terminal_a_table(
    rca_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rca_command("diagnose", SLOW).out.startswith("# ")
    monkeypatch.setattr("rca.commands.diagnose.sys.stdout.isatty", lambda: True, raising=False)
    shown = rca_command("diagnose", SLOW).out
    assert "Do this" in shown
    assert "\x1b[" in shown


def test_standard_input_is_read(rca_command: Run) -> None:
    ran = rca_command("diagnose", "-", "--format", "json", stdin=WHOLE)
    assert json.loads(ran.out)["job_id"] == "job-1"


def test_an_earlier_window_is_compared_with(rca_command: Run, tmp_path: Path) -> None:
    window = rca.read_window(SLOW)
    shifted(window, -3600.0).to_directory(tmp_path / "before")
    ran = rca_command("diagnose", SLOW, "--earlier", tmp_path / "before", "--format", "json")
    assert ran.code == 10
    assert json.loads(ran.out)["earlier"]["ratio"] == pytest.approx(1.0)
    refused = rca_command("diagnose", SLOW, "--earlier", SLOW)
    assert refused.code == 2
    assert "s after the window begins" in refused.err
    lost = rca_command("diagnose", SLOW, "--earlier", tmp_path / "nowhere")
    assert lost.code == 2
    assert "the earlier window: " in lost.err
    twice = rca_command("diagnose", "-", "--earlier", "-", stdin=WHOLE)
    assert twice.code == 2
    assert "standard input is one window" in twice.err


@for_each(
    ("name", "start"),
    [("a.json", "{"), ("a.html", "<!doctype"), ("a.md", "# "), ("a", "# "), ("a.txt", "FAIL-SLOW")],
)
def test_the_suffix_of_the_output_chooses_the_format(
    rca_command: Run, tmp_path: Path, name: str, start: str
) -> None:
    ran = rca_command("diagnose", SLOW, "--output", tmp_path / name)
    assert (ran.out, ran.err) == ("", f"written to {tmp_path / name}\n")
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_programs_get_no_message_on_standard_error(rca_command: Run, tmp_path: Path) -> None:
    ran = rca_command("diagnose", SLOW, "--format", "json", "--output", tmp_path / "a.json")
    assert (ran.code, ran.out, ran.err) == (10, "", "")


@pytest.mark.parametrize("format_", ["table", "markdown"])
def test_the_runbook_of_an_answer_is_a_command_that_runs(
    rca_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    window = Path("my window")
    (tmp_path / window).symlink_to(SLOW.resolve())
    monkeypatch.chdir(tmp_path)
    text = rca_command("diagnose", window, "--format", format_, "--output", tmp_path / "page")
    assert text.code == 10
    page = " ".join((tmp_path / "page").read_text(encoding="utf-8").replace("`", "").split())
    command = f"rca runbook cpu_contention --diagnosis '{window}'"
    assert command in page
    ran = rca_command(*shlex.split(command)[1:])
    assert ran.code == 0
    assert "ranks 2-3 on node-1" in ran.out


@pytest.mark.parametrize("format_", ["html", "slack"])
def test_a_page_for_others_has_a_runbook_command_without_a_path(rca_command: Run, format_: str) -> None:
    assert "rca runbook cpu_contention<" in rca_command("diagnose", SLOW, "-f", format_).out.replace("`", "<")


def test_a_suffix_that_is_no_format_is_refused(rca_command: Run, tmp_path: Path) -> None:
    ran = rca_command("diagnose", SLOW, "--output", tmp_path / "page.pdf")
    assert ran.code == 2
    assert ".pdf says no format" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_a_message(rca_command: Run, tmp_path: Path) -> None:
    ran = rca_command("diagnose", SLOW, "--output", tmp_path / "no" / "such" / "folder.md")
    assert (ran.code, ran.out) == (2, "")
    assert "cannot write" in ran.err


def test_a_missing_bundle_is_an_installation_error(rca_command: Run, tmp_path: Path) -> None:
    ran = rca_command("diagnose", SLOW, "--bundle", tmp_path / "nothing")
    assert ran.code == 1
    assert ran.err.startswith("error (bundle-error): ")


def test_an_interrupt_is_quiet(rca_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rca.diagnose", interrupted)
    ran = rca_command("diagnose", SLOW)
    assert ran.code == 130
    assert "Traceback" not in ran.err


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rca.cli", *arguments]


@pytest.mark.system
def test_a_reader_that_leaves_early_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    ran = subprocess.run(
        command_line("diagnose", str(SLOW), "--format", "json"),
        stdout=write_end,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write_end)
    assert (ran.returncode, ran.stderr) == (141, b"")


@pytest.mark.system
def test_a_terminal_without_unicode_gets_a_page_too() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    ran = subprocess.run(
        command_line("diagnose", str(SLOW), "--format", "table"),
        env=environment,
        capture_output=True,
        check=False,
    )
    assert ran.returncode in (10, 30)
    assert b"rank" in ran.stdout


@pytest.mark.system
def test_a_diagnosis_imports_nothing_heavy() -> None:
    heavy = ("pandas", "sklearn", "scipy.stats", "lightgbm", "numba", "fastapi", "mlflow", "dowhy", "jinja2")
    script = (
        "import sys\n"
        "from rca.cli import main\n"
        f"sys.argv = ['rca', 'diagnose', {str(SLOW)!r}, '--format', 'json']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"


def test_cluster_priors_move_the_causes(rca_command: Run, tmp_path: Path, make_window) -> None:
    window = make_window(late={5: 0.05}, phase="data_loading_seconds")
    window.to_directory(tmp_path / "window")
    priors = tmp_path / "priors.json"
    priors.write_text('{"storage_degradation": 1000000, "data_loader_stall": 1}')
    ran = rca_command("diagnose", tmp_path / "window", "--format", "json", "--priors", priors)
    assert json.loads(ran.out)["causes"][0]["cause"] == "storage_degradation"


def test_cluster_priors_come_from_the_environment_too(
    rca_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    priors = tmp_path / "priors.json"
    priors.write_text('{"nic": 1}')
    monkeypatch.setenv("RCA_PRIORS", str(priors))
    ran = rca_command("diagnose", SLOW, "--format", "json")
    assert ran.code == 2
    assert "'nic' is not in the catalogue" in ran.err


def test_the_error_of_a_broken_file_names_it(rca_command: Run, tmp_path: Path) -> None:
    broken, folder = tmp_path / "broken.json", tmp_path / "window"
    broken.write_text('{"job": {')
    folder.mkdir()
    (folder / "window.json").write_text('{"job"')
    for path in (broken, folder):
        assert f"in {path}, " in rca_command("diagnose", path).err
    told = json.loads(rca_command("diagnose", broken, "--format", "json").err)
    assert told["path"] == str(broken)
    earlier = rca_command("diagnose", SLOW, "--earlier", broken).err
    assert str(broken) in earlier
    assert "the earlier window" in earlier
