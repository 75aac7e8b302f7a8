"""More equal stragglers than can be priced one by one still cost what they cost; so do two faults at once."""

from __future__ import annotations

import numpy as np
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


def test_slower_collectives_beside_a_straggler_are_told(make_window) -> None:
    transfer = np.where(np.arange(60) >= 20, 0.12, 0.04)
    late = {"late": {5: 0.06}, "phase": {"forward_seconds": 0.35, "backward_seconds": 0.65}}
    diagnosis = rca.diagnose(make_window(16, 60, steps=slice(20, None), transfer=transfer, **late))
    assert {"rank", "job"} <= {each.scope for each in diagnosis.stragglers}
    moved = [each for each in diagnosis.causes if each.cause in {"network_congestion", "nvlink_degradation"}]
    # The rest is left to what may have slowed rank 5: nothing was measured that would tell.
    assert sum(each.seconds_per_step for each in moved) > 0.45 * 0.08 * 2 / 3
    assert abs(diagnosis.unexplained_seconds_per_step) < 0.2 * diagnosis.slowdown.seconds_per_step
