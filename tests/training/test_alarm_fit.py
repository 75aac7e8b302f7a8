"""The alarm of latenesses is fitted from few windows, and put into a bundle whose rest stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rca.diagnosis.alarm import ALARM_NUMBERS
from rca.diagnosis.bundle import ALARM, Bundle, shipped_folder
from rca.errors import BundleError
from rca.lab.simulation.corpus import simulated_window
from rca.lab.training.alarm_fit import MIN_PART, AlarmRow, _split, fit_alarm, fitted
from rca.lab.training.bundle import with_alarm
from rca.lab.training.simulated import scenario_seeds

COST, SIZE = ALARM_NUMBERS.index("ranks_cost"), ALARM_NUMBERS.index("ranks_size")


def rows(n: int = 400) -> list[AlarmRow]:
    """Windows whose late rank costs much where they are faulty."""
    noise = np.random.default_rng(0)
    found = []
    for number in range(n):
        numbers = np.zeros(len(ALARM_NUMBERS))
        faulty = bool(number % 2)
        numbers[COST] = abs(noise.normal(0.2 if faulty else 0.02, 0.05))
        numbers[SIZE] = abs(noise.normal(4.0 if faulty else 1.0, 0.5))
        found.append(AlarmRow(numbers, faulty, number % 3 == 0))
    return found


def test_the_alarm_learns_that_a_costly_lateness_is_a_fault(tmp_path: Path) -> None:
    with_alarm(shipped_folder(), tmp_path / "new", fitted(rows(), 1), {"seed": 1})
    alarm = Bundle.load(tmp_path / "new").alarm
    assert alarm is not None
    chances = alarm.probabilities(np.array([row.numbers for row in rows()]))[:, 1]
    faulty = np.array([row.faulty for row in rows()])
    assert np.median(chances[faulty]) > 0.95
    assert np.median(chances[~faulty]) < 0.05


def test_only_the_alarm_of_a_bundle_changes(tmp_path: Path) -> None:
    old, new = shipped_folder(), tmp_path / "new"
    digest = with_alarm(old, new, fitted(rows(), 1), {"seed": 1})
    before, after = (json.loads((each / "manifest.json").read_text()) for each in (old, new))
    changed = {name for name, each in after["files"].items() if before["files"].get(name) != each}
    assert changed == {"alarm.txt.gz", "heads.json"}
    assert after["provenance"].pop(ALARM) == {"seed": 1}
    before["provenance"].pop(ALARM, None)
    assert after["provenance"] == before["provenance"]
    assert Bundle.load(new).model.sha256 == digest
    assert with_alarm(old, new, fitted(rows(), 1), {"seed": 1}) == digest


class NoWorkers:
    """Workers that have not finished a task."""

    def map(self, *_: object, **__: object) -> Iterator[None]:
        raise TimeoutError
        yield


def test_the_progress_is_counted_before_the_first_window_is_simulated() -> None:
    reports: list[tuple[str, int, int]] = []
    with pytest.raises(TimeoutError):
        fit_alarm(200, 1, (), NoWorkers(), lambda *report: reports.append(report))  # type: ignore[arg-type]
    ((phase, done, total),) = reports
    assert (phase, done) == ("simulating jobs for the alarm of latenesses", 0)
    assert total > 200


def test_a_bundle_whose_alarm_was_altered_is_refused(tmp_path: Path) -> None:
    with_alarm(shipped_folder(), tmp_path / "new", fitted(rows(), 1), {})
    (tmp_path / "new" / "alarm.txt.gz").write_text("tree")
    with pytest.raises(BundleError, match=r"alarm\.txt\.gz does not match"):
        Bundle.load(tmp_path / "new")


def test_a_window_is_split_where_its_fault_begins() -> None:
    """Both parts have enough steps, and the fault acts in the second one only."""
    split = []
    for seed in scenario_seeds(60, 5):
        window, label = simulated_window(seed, with_steps=True)
        parts = _split(window, label)
        if parts is not None:
            split.append((label, *parts))
    assert any(label.failure_mode == "fail_slow" for label, *_ in split)
    assert any(label.failure_mode == "healthy" for label, *_ in split)
    for label, earlier, later, relabelled in split:
        before, after = (np.unique(each.steps.column("step").to_numpy()) for each in (earlier, later))
        assert before[-1] < after[0]
        assert min(before.size, after.size) >= MIN_PART
        assert relabelled.failure_mode == label.failure_mode
        assert all(cause.first_step is None or cause.first_step >= after[0] for cause in label.causes)
