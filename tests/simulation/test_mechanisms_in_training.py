"""Windows of the second version: without steps, in training, and on the command line."""

from __future__ import annotations

import numpy as np
import pytest
from test_mechanisms import drawn

from rca.errors import InvalidInput
from rca.lab.simulation import (
    corpus,
    simulate,
)
from rca.lab.simulation.corpus import corpus_window
from rca.lab.simulation.mechanisms import HARMLESS, sample_second
from rca.lab.simulation.mechanisms.parts import changed
from rca.lab.training.simulated import simulated_examples
from rca.workers import HERE


def test_a_window_may_have_exporters_and_no_steps() -> None:
    bare = changed(drawn("chronic_job"), telemetry={"steps_reported": False})
    found = simulate(bare)
    assert found.window.steps.num_rows == 0
    assert found.window.metrics.num_rows > 0
    assert found.label == simulate(drawn("chronic_job")).label


def test_a_training_can_learn_from_the_second_version() -> None:
    first, second = (list(simulated_examples(4, 1, workers=HERE, version=version)) for version in (1, 2))
    assert [each.group for each in first] == [each.group for each in second]
    assert any(not np.array_equal(a.window, b.window) for a, b in zip(first, second, strict=True))


def test_a_training_gets_steps_of_windows_that_have_none(monkeypatch) -> None:
    bare = changed(drawn("chronic_job"), telemetry={"steps_reported": False})
    monkeypatch.setattr(corpus, "sampled", lambda rng, version: bare)
    assert corpus.simulated_window(0, 2)[0].steps.num_rows == 0
    assert corpus.simulated_window(0, 2, with_steps=True)[0].steps.num_rows > 0


def test_requested_healthy_jobs_have_no_fault_and_some_a_harmless_mechanism() -> None:
    rng = np.random.default_rng(0)
    healthy = [sample_second(rng, cause="healthy") for _ in range(12)]
    assert {""} < {each.mechanism for each in healthy} <= {"", *HARMLESS}
    assert not any(each.faults for each in healthy)
    assert corpus_window(3, 0, version=2).scenario.corpus == 2


def test_the_command_refuses_what_a_version_lacks(tmp_path) -> None:
    from rca.commands.simulate import command

    with pytest.raises(InvalidInput, match="unknown cause 'recompilation'"):
        command(tmp_path / "a", cause="recompilation")
    with pytest.raises(InvalidInput, match="unknown mechanism 'gang' of version 1"):
        command(tmp_path / "a", mechanism="gang")
    with pytest.raises(InvalidInput, match="exclude each other"):
        command(tmp_path / "a", corpus=2, mechanism="gang", cause="hang")
    command(tmp_path / "a", windows=2, corpus=2, mechanism="gang", processes=1)
    assert (tmp_path / "a" / "gang-v2-0-00001").is_dir()
