from __future__ import annotations

from pathlib import Path

import pytest
from testbed_records import acted_of, record_of, rows_of

from rca.errors import InvalidInput, RcaError
from rca.lab.testbed.campaign import CampaignProgress, run_campaign
from rca.lab.testbed.labels import label_of
from rca.lab.testbed.matrix import ScenarioMatrix, expand
from rca.lab.testbed.scenario import CaptureScenario
from rca.lab.testbed.window import window_of
from rca.sources.labels import read_collection, write_labelled

MATRIX = ScenarioMatrix.model_validate(
    {
        "name": "small",
        "seed": 3,
        "steps": 20,
        "groups": [
            {"name": "calm", "models": ["mlp"], "world_sizes": [2, 4]},
            {
                "name": "dataset",
                "faults": [{"kind": "slow_dataset"}],
                "models": ["mlp"],
                "severities": [1, 3],
            },
        ],
    }
)


class FakeMachine:
    """Writes plausible windows instead of capturing; can fail or be interrupted at a capture."""

    def __init__(self, fail_at: int | None = None, interrupt_at: int | None = None) -> None:
        self.made: list[str] = []
        self._fail_at, self._interrupt_at = fail_at, interrupt_at

    def __call__(self, scenario: CaptureScenario, path: Path) -> None:
        import numpy as np

        if len(self.made) == self._interrupt_at:
            raise KeyboardInterrupt
        self.made.append(scenario.name)
        if len(self.made) - 1 == self._fail_at:
            raise RcaError("the ranks did not start")
        rows = rows_of(np.full(scenario.job.steps, 0.1), scenario.job.world_size)
        record = record_of(rows, [acted_of(scenario, i) for i in range(len(scenario.faults))])
        write_labelled(window_of(scenario, record), label_of(scenario, record), path)


def test_a_campaign_makes_a_collection_with_its_parts(tmp_path):
    outcome = run_campaign(MATRIX, tmp_path / "c", FakeMachine())
    assert (outcome.total, outcome.made, outcome.failed) == (4, 4, {})
    collection = read_collection(tmp_path / "c")
    parts = {each.scenario.name: each.part for each in expand(MATRIX)}
    assert {entry.id: entry.summary["split"] for entry in collection} == parts
    assert all(entry.read_window().job.world_size == entry.summary["world_size"] for entry in collection)
    assert collection.properties["planned"] == 4


def test_captures_are_made_in_the_drawn_order(tmp_path):
    machine = FakeMachine()
    run_campaign(MATRIX, tmp_path / "c", machine)
    assert machine.made == [each.scenario.name for each in expand(MATRIX)]


def test_an_interrupted_campaign_continues(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_campaign(MATRIX, tmp_path / "c", FakeMachine(interrupt_at=2))
    assert len(read_collection(tmp_path / "c")) == 2
    rest = FakeMachine()
    outcome = run_campaign(MATRIX, tmp_path / "c", rest)
    assert (outcome.total, len(rest.made)) == (4, 2)


def test_a_failed_capture_does_not_end_the_campaign_and_is_tried_again(tmp_path):
    outcome = run_campaign(MATRIX, tmp_path / "c", FakeMachine(fail_at=1))
    assert (outcome.total, outcome.made) == (3, 3)
    assert list(outcome.failed.values()) == ["the ranks did not start"]
    again = FakeMachine()
    run_campaign(MATRIX, tmp_path / "c", again)
    assert again.made == list(outcome.failed)


def test_a_limit_stops_early(tmp_path):
    machine = FakeMachine()
    assert run_campaign(MATRIX, tmp_path / "c", machine, limit=1).total == 1
    assert len(machine.made) == 1


def test_progress_has_an_estimate_from_the_second_capture_on(tmp_path):
    reported: list[CampaignProgress] = []
    run_campaign(MATRIX, tmp_path / "c", FakeMachine(), on_progress=reported.append)
    assert [each.done for each in reported] == [0, 1, 2, 3]
    assert reported[0].remaining_seconds is None
    assert all(each.remaining_seconds is not None and each.remaining_seconds >= 0 for each in reported[1:])


def test_another_campaigns_folder_is_refused(tmp_path):
    run_campaign(MATRIX, tmp_path / "c", FakeMachine())
    other = MATRIX.model_copy(update={"name": "other"})
    with pytest.raises(InvalidInput, match="contains the campaign 'small'"):
        run_campaign(other, tmp_path / "c", FakeMachine())


def test_no_capture_is_half_written(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_campaign(MATRIX, tmp_path / "c", FakeMachine(interrupt_at=1))
    assert [path.name for path in (tmp_path / "c").iterdir() if path.name.startswith(".")] == []
