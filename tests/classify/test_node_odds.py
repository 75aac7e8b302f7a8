"""A node's history changes the suspects by bounded odds, and never the failure mode."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rca
from rca.classify.operator_inputs import MAX_FACTOR, checked_node_odds, read_node_odds, with_history
from rca.errors import InvalidInput
from rca.window.job import Job, Topology

WINDOWS = Path(__file__).parents[2] / "data" / "windows"


def _topology(nodes: list[str | None]) -> Topology:
    ranks = [{"rank": rank} | ({"node": node} if node else {}) for rank, node in enumerate(nodes)]
    return Topology.from_job(
        Job.model_validate(
            {"format": 1, "job_id": "j", "world_size": len(nodes), "start": 0, "end": 1, "ranks": ranks}
        )
    )


@given(st.floats(1e-6, 1 - 1e-6), st.floats(1 / MAX_FACTOR, MAX_FACTOR))
def test_odds_are_multiplied_on_the_node_and_nowhere_else(chance: float, factor: float) -> None:
    chances = np.full(4, chance)
    moved = with_history(chances, {"b": factor}, _topology(["a", "b", "b", None]))
    assert moved[[0, 3]] == pytest.approx(chances[:2])
    assert moved[1:3] / (1 - moved[1:3]) == pytest.approx(factor * chance / (1 - chance), rel=1e-6)


def test_history_is_bounded_and_has_to_be_positive() -> None:
    assert checked_node_odds({"a": 1e6, "b": 1e-6, "c": 2}) == {
        "a": MAX_FACTOR,
        "b": 1 / MAX_FACTOR,
        "c": 2.0,
    }
    for wrong in (0, -1, float("nan"), True, "4"):
        with pytest.raises(InvalidInput, match="node odds: a has"):
            checked_node_odds({"a": wrong})  # type: ignore[dict-item]


def test_a_file_is_read_or_refused_with_an_example(tmp_path: Path) -> None:
    file = tmp_path / "odds.json"
    file.write_text(json.dumps({"node-1": 4}))
    assert read_node_odds(file) == {"node-1": 4.0}
    file.write_text("[1]")
    with pytest.raises(InvalidInput, match="node-17"):
        read_node_odds(file)


def test_a_healthy_job_stays_healthy_whatever_its_nodes_did() -> None:
    window = rca.read_window(WINDOWS / "healthy")
    plain = rca.diagnose(window)
    moved = rca.diagnose(window, node_odds=dict.fromkeys(window.job.topology.node_names, MAX_FACTOR))
    assert moved.failure_mode == plain.failure_mode == "healthy"
    assert moved.failure_mode_probability == plain.failure_mode_probability
    assert not moved.stragglers


def test_a_blamed_node_with_a_history_is_more_probable_and_says_so() -> None:
    window = rca.read_window(WINDOWS / "cpu-contention-node")
    plain = rca.diagnose(window)
    node = plain.causes[0].nodes[0]
    moved = rca.diagnose(window, node_odds={node: 4})
    assert moved.causes[0].nodes == plain.causes[0].nodes
    assert moved.stragglers[0].probability > plain.stragglers[0].probability
    assert any(node in note and "multiplied by 4" in note for note in moved.quality.notes)
    assert not any("was at fault before" in note for note in plain.quality.notes)
