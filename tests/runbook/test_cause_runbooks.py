"""The runbooks of the package: whole, with placeholders that exist and commands that their programs take."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lint import WrongCommandError, check

from rca.runbook.procedures import Library, Runbook, runbook
from rca.runbook.procedures.pages import markdown, text
from rca.runbook.procedures.sources import PLATFORMS, SECTIONS, Platform, texts, unknown_placeholders
from rca.window.causes import SPECS
from tests.for_each import for_each

LIBRARY = Library.read()
PAGES = [(cause, platform) for cause in SPECS for platform in PLATFORMS]
#: Lines of a page without an incident.
MAX_LINES = 90
#: Columns of prose; commands are never wrapped.
MAX_COLUMNS = 80


def page(cause: str, platform: Platform) -> Runbook:
    return runbook(LIBRARY, cause, platform=platform)


def commands(found: Runbook) -> Iterator[str]:
    for section in SECTIONS:
        for step in getattr(found, section):
            yield from step.commands
    for undone in found.roll_back:
        yield from undone.commands
    yield from (each.find for each in found.replace if each.find)


def test_every_cause_has_a_runbook() -> None:
    folder = Path(__file__).parents[2] / "rca" / "runbook" / "procedures" / "files"
    assert {path.stem for path in folder.iterdir()} == {*SPECS, "common"}
    assert set(LIBRARY.runbooks) == set(SPECS)


@for_each("cause", SPECS)
def test_every_placeholder_and_every_shared_step_exists(cause: str) -> None:
    source = LIBRARY.runbooks[cause]
    assert unknown_placeholders(source, LIBRARY.common.placeholders) == []
    assert {step.use for step in source.steps()} - {None} <= set(LIBRARY.common.steps)


def test_what_is_shared_is_known_and_used() -> None:
    common = LIBRARY.common
    assert unknown_placeholders(common, common.placeholders) == []
    assert set(common.values) <= set(common.placeholders)
    written = "\n".join(line for source in (common, *LIBRARY.runbooks.values()) for line in texts(source))
    assert {name for name in common.placeholders if f"{{{{ {name} }}}}" not in written} == set()
    used = {step.use for source in LIBRARY.runbooks.values() for step in source.steps()}
    assert set(common.steps) <= used


@for_each(("cause", "platform"), PAGES)
def test_a_page_is_whole_and_short(cause: str, platform: Platform) -> None:
    found = page(cause, platform)
    assert found.verify
    assert any(step.commands for step in found.verify)
    assert all(step.confirmed and step.otherwise for step in found.verify)
    assert found.confirm
    assert found.escalate
    # Every change has its line in the roll back, the last one first.
    changed = [step.number for step in (*found.contain, *found.fix) if step.changes]
    assert [each.number for each in found.roll_back if each.number is not None] == changed[::-1]
    assert not [step for step in (*found.verify, *found.confirm) if step.changes]
    lines = text(found).splitlines()
    assert len(lines) <= MAX_LINES
    assert {line.strip() for line in lines if len(line) > MAX_COLUMNS} <= set(commands(found))
    for shown in (text(found), markdown(found)):
        assert "{{" not in shown
        assert all(each.written in shown for each in found.replace)


def test_a_placeholder_names_the_step_that_shows_it() -> None:
    shown = text(page("cpu_contention", "host"))
    assert "  OTHER_PID: process id of the other process; step 1 shows it" in shown
    assert "  For another platform: --platform kubernetes or slurm." in shown
    for source in LIBRARY.runbooks.values():
        assert {name for step in source.steps() for name in step.shows} <= set(LIBRARY.common.placeholders)


@for_each(("cause", "platform"), PAGES)
def test_every_command_is_one_that_its_program_takes(cause: str, platform: Platform) -> None:
    for command in commands(page(cause, platform)):
        check(command)


@pytest.mark.system
def test_a_shell_can_parse_every_command(tmp_path: Path) -> None:
    lines = sorted({command for cause, platform in PAGES for command in commands(page(cause, platform))})
    assert len(lines) > 150
    script = tmp_path / "commands.sh"
    script.write_text("\n".join(lines) + "\n")
    parsed = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")


@for_each("cause", [cause for cause, spec in SPECS.items() if spec.owner == "workload"])
def test_no_machine_is_taken_out_for_a_cause_of_the_workload(cause: str) -> None:
    for platform in PLATFORMS:
        shown = text(page(cause, platform))
        assert not re.search("kubectl cordon|State=DRAIN|sed -i", shown)
        assert "Drain no node" in shown


def test_sentences_are_short() -> None:
    for source in (LIBRARY.common, *LIBRARY.runbooks.values()):
        for step in source.steps.values() if hasattr(source.steps, "values") else source.steps():
            for prose in (step.do, step.confirmed, step.otherwise):
                for sentence in re.split(r"(?<=[.?!])\s+", prose):
                    assert len(sentence.split()) <= 25, sentence


@for_each(
    "wrong",
    [
        "nvidia-smi -q -d PCIE",
        "nvidia-smi --query-gpu=index,clock.sm --format=csv",
        "nvidia-smi nvlink --errors",
        "scontrol update JobId=1 ReqSwitch=1",
        "scontrol update NodeName=a State=DRAINED",
        "kubectl drane node-1",
        "kubectl debug node/a -it --image=busybox",
        "kubectl exec --namespaces a b -- sh -c 'nproc'",
        "ssh node-1 'dmesg -Z'",
        "ssh node-1",
        "srun --job=1 sh -c nproc",
        "ethtool -Q eth0",
        "tc qdisc remove dev eth0 root",
        "squeue --status=RUNNING",
        "dmesg -T | greb -i xid",
        "cat 'a",
        "rca diagnose a --verbos",
        "rca diagnoze a",
        "dcgmi diag --run 9",
        "nvidia-smi -i",
    ],
)
def test_the_check_finds_wrong_commands(wrong: str) -> None:
    with pytest.raises(WrongCommandError):
        check(wrong)
