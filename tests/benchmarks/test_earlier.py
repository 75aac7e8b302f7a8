"""Windows are cut where their fault begins, and asked with and without what was before."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.earlier import ALONE, BESIDE, GAP, cut, main, rows_of, table
from rca.simulation import Fault, simulate
from rca.telemetry.labels import CollectionEntry, Label, write_labelled, write_manifest
from rca.telemetry.step_clock import StepClock
from rca.telemetry.window import Window
from tests.diagnosis.simulated_jobs import WORKLOAD, job

ALL = tuple(range(16))


def labelled(*faults: Fault) -> tuple[Window, Label]:
    found = simulate(job(*faults, seed=1, workload=WORKLOAD))
    return found.window, Label.model_validate(found.label)


def stall(**changes: int | None) -> Fault:
    return Fault(cause="data_loader_stall", ranks=ALL, severity=0.6, **({"first_step": 40} | changes))


def test_a_window_is_cut_where_its_fault_begins() -> None:
    parts = cut(*labelled(stall()))
    assert parts is not None
    earlier, later = StepClock.of(parts.earlier), StepClock.of(parts.later)
    assert (earlier.steps.size, later.first) == (40, 40)
    assert parts.later.job.start - parts.earlier.job.end == pytest.approx(GAP)
    assert parts.label.causes[0].first_step == 40


def test_a_healthy_window_is_cut_in_the_middle() -> None:
    parts = cut(*labelled())
    assert parts is not None
    assert StepClock.of(parts.later).first == 50
    assert parts.label.failure_mode == "healthy"


@pytest.mark.parametrize(
    "fault",
    [stall(first_step=5), stall(last_step=70), Fault(cause="process_crash", ranks=(3,), first_step=60)],
    ids=["too early", "over", "stopped"],
)
def test_what_cannot_be_asked_is_left_out(fault: Fault) -> None:
    assert cut(*labelled(fault)) is None


def test_both_answers_are_judged_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_labelled(*labelled(stall()), tmp_path / "one")
    rows = rows_of(CollectionEntry("one", tmp_path / "one", {}))
    assert rows is not None
    assert rows[BESIDE].judged.seconds_error < rows[ALONE].judged.seconds_error
    assert table([rows]).row_count > 3
    write_manifest(tmp_path, [{"id": "one", "path": "one"}], {})
    assert main([str(tmp_path), "--processes", "1"]) == 0
    assert "1 windows, 1 of them with a fault" in capsys.readouterr().out
    assert main([str(tmp_path), "--split", "none"]) == 2
    assert main([str(tmp_path / "nowhere")]) == 2
