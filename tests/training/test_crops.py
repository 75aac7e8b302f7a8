"""A shorter or smaller window keeps a label that is true of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rca.lab.training.crops import crop, without_ranks
from rca.sources.labels import WindowLabel, read_label, unfelt
from rca.sources.read import read_window
from rca.window.window import Window

WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"
SLOW, KILLED = "slow-dataset", "killed-rank"


def labelled(name: str) -> tuple[Window, WindowLabel]:
    return read_window(WINDOWS / name), read_label(WINDOWS / name)


def cropped(name: str, first: int, end: int) -> tuple[Window, WindowLabel]:
    found = crop(*labelled(name), first, end)
    assert found is not None
    return found


def test_what_lies_before_the_fault_is_healthy() -> None:
    window, label = cropped(SLOW, 0, 22)
    assert (label.failure_mode, label.causes, label.straggler_type) == ("healthy", (), None)
    assert not unfelt(label)
    assert sorted(set(window.steps.column("step").to_pylist())) == list(range(22))


def test_a_fault_that_hardly_acts_in_the_crop_makes_no_example() -> None:
    assert crop(*labelled(SLOW), 0, 26) is None


def test_the_price_is_spread_over_the_steps_that_are_left() -> None:
    window, label = labelled(SLOW)
    priced = label.model_copy(
        update={"causes": (label.causes[0].model_copy(update={"seconds_per_step": 0.031}),)}
    )
    found = crop(window, priced, 22, 53)
    assert found is not None
    # All 31 steps are hurt instead of 31 of 66: twice the share, twice the mean.
    assert (found[1].causes[0].model_extra or {})["seconds_per_step"] == pytest.approx(0.031 * 66 / 31)


def test_samples_and_bounds_follow_the_steps() -> None:
    window, _ = cropped(SLOW, 10, 40)
    whole, _ = labelled(SLOW)
    time = window.metrics.column("time").to_numpy()
    assert window.job.start <= time.min()
    assert time.max() < window.job.end
    assert window.metrics.num_rows == pytest.approx(whole.metrics.num_rows * 30 / 66, rel=0.35)


def test_a_stopped_job_keeps_its_end() -> None:
    window, label = cropped(KILLED, 10, 20)
    whole, _ = labelled(KILLED)
    assert label.failure_mode == "fail_stop"
    assert window.job.end == whole.job.end
    assert window.steps.column("step").to_numpy().max() == whole.steps.column("step").to_numpy().max()


def test_a_smaller_job_is_a_valid_window_with_the_culprit_renumbered() -> None:
    window, label = labelled(SLOW)
    smaller, renamed = without_ranks(window, label, np.array([0, 1, 4, 5]))
    again = Window.from_tables(smaller.job, smaller.steps, smaller.metrics, smaller.events)
    assert again.job.world_size == 4
    assert renamed.causes[0].ranks == (3,)
    assert again.job.topology.nodes_of([3]) == window.job.topology.nodes_of([7])
    before = window.steps.filter(np.asarray(window.steps.column("rank")) == 7)
    after = smaller.steps.filter(np.asarray(smaller.steps.column("rank")) == 3)
    assert after.column("step_seconds").to_pylist() == before.column("step_seconds").to_pylist()
    gone = set(window.job.topology.nodes_of([0, 4]))
    assert gone.isdisjoint(smaller.metrics.column("node").to_pylist())


def test_a_part_of_a_slow_window_without_a_named_cause_is_not_called_healthy() -> None:
    window, label = labelled(SLOW)
    assert crop(window, label.model_copy(update={"causes": ()}), 0, 60) is None
