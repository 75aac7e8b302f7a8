"""The catalogue of causes, and what follows from it."""

from __future__ import annotations

from rca.window.causes import CAUSES, UNKNOWN, pattern_of
from tests.for_each import for_each

BY_DESIGN = {"stage_imbalance", "sequence_length_imbalance", "checkpoint_stall", "recompilation"}


@for_each("cause", [*CAUSES, UNKNOWN])
def test_what_is_made_into_the_job_is_deterministic_and_the_rest_persists(cause: str) -> None:
    lasting = "deterministic" if cause in BY_DESIGN else "persistent"
    assert pattern_of(cause, ends_inside=False) == lasting
    assert pattern_of(cause, ends_inside=True) == "transient"


def test_only_the_jobs_owner_can_change_its_design() -> None:
    assert {CAUSES[cause].owner for cause in BY_DESIGN} == {"workload"}
