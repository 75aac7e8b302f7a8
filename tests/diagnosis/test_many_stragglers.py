"""More equal stragglers than can be priced one by one still cost what they cost; so do two faults at once."""

from __future__ import annotations

import pytest

import rca


@pytest.mark.parametrize("n", [3, 7, 8, 12])
def test_equal_stragglers_share_the_whole_slowdown(make_window, n: int) -> None:
    late = dict.fromkeys(range(0, 4 * n, 4), 0.05)
    starved = {"late": late, "phase": "data_loading_seconds", "steps": slice(20, None)}
    diagnosis = rca.diagnose(make_window(64, 60, ranks_per_node=4, **starved))
    assert diagnosis.failure_mode == "fail_slow"
    named = {rank for each in diagnosis.stragglers for rank in each.ranks}
    assert named == set(late)
    assert sum(each.share for each in diagnosis.causes) > 0.8
    total = diagnosis.slowdown.seconds_per_step
    assert abs(diagnosis.unexplained_seconds_per_step) < 0.2 * total
    most = diagnosis.slowdown.interval[1]
    assert all(0 <= each.interval[0] <= each.interval[1] <= most for each in diagnosis.causes)
