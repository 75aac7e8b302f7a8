"""Evidence of a PCIe link below its maximum, and of device memory near its limit."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from test_features import _metrics, rank_column, window_value

from rca.features import extract
from rca.features.resource_evidence import missing_resources
from rca.window import Window


def _link_scores(
    make_window: Callable[..., Window],
    generation: dict[int, float],
    *,
    maximum: float | None = 5.0,
    activity: float | None = None,
    late: dict[int, float] | None = None,
) -> np.ndarray:
    """`pcie_vs_nominal` of eight ranks with these generations from first to last step."""
    window = make_window()
    gauges = [_metrics("DCGM_FI_DEV_PCIE_LINK_GEN", window, dict.fromkeys(range(8), 5.0) | generation)]
    if maximum is not None:
        gauges.append(_metrics("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", window, dict.fromkeys(range(8), maximum)))
    if activity is not None:
        gauges.append(_metrics("DCGM_FI_PROF_SM_ACTIVE", window, dict.fromkeys(range(8), activity)))
    return rank_column(
        extract(make_window(metrics=pa.concat_tables(gauges), late=late or {})), "pcie_vs_nominal"
    )


@pytest.mark.parametrize("maximum", [5.0, None], ids=["maximum exported", "maximum of the job"])
def test_a_link_below_its_maximum_from_first_to_last_step_is_evidence(make_window, maximum: float | None):
    scores = _link_scores(make_window, {5: 2.0}, maximum=maximum)
    assert scores[5] == pytest.approx(3.0, rel=0.05)
    assert not np.delete(scores, 5).any()


def test_links_of_all_ranks_below_the_stated_maximum_are_evidence(make_window):
    assert (_link_scores(make_window, dict.fromkeys(range(8), 3.0)) > 1.5).all()


def test_a_device_without_load_lowers_its_link_without_a_fault(make_window):
    assert np.isnan(_link_scores(make_window, {5: 1.0}, activity=0.0)).all()
    assert _link_scores(make_window, {5: 1.0}, activity=0.7)[5] > 3.0


def test_a_rank_that_waits_for_most_of_its_step_may_lower_its_link(make_window):
    """Rank 0 is late, so all others wait for it; half of them are idle enough to lower the link."""
    scores = _link_scores(make_window, dict.fromkeys(range(4, 8), 1.0), late={0: 1.0})
    assert scores[0] == 0.0
    assert np.isnan(scores[1:]).all()


def test_samples_of_single_idle_moments_are_no_lost_generation(make_window):
    assert not _link_scores(make_window, {5: 4.4}).any()


@pytest.mark.parametrize(
    ("free", "score"), [(4000.0, 0.0), (2000.0, 0.0), (1400.0, 1.0), (400.0, 8 / 3)], ids=str
)
def test_device_memory_scores_near_its_limit_only(make_window, free: float, score: float):
    window = make_window()
    gauges = [
        _metrics("DCGM_FI_DEV_FB_USED", window, dict.fromkeys(range(8), 20000.0 - free)),
        _metrics("DCGM_FI_DEV_FB_FREE", window, dict.fromkeys(range(8), free)),
    ]
    features = extract(make_window(metrics=pa.concat_tables(gauges)))
    assert window_value(features, "median_device_memory_vs_nominal") == pytest.approx(score, abs=0.01)
    assert window_value(features, "max_device_memory_vs_peers") == 0.0


def test_the_share_of_memory_follows_from_its_size_as_well(make_window):
    window = make_window()
    gauges = [
        _metrics("amd_gpu_used_vram", window, dict.fromkeys(range(8), 50.0) | {2: 96.0}),
        _metrics("amd_gpu_total_vram", window, dict.fromkeys(range(8), 100.0)),
    ]
    features = extract(make_window(metrics=pa.concat_tables(gauges)))
    assert rank_column(features, "device_memory_vs_peers")[2] == pytest.approx(2.0, rel=0.01)


def test_unknown_device_memory_is_no_gap_in_the_evidence(make_window):
    features = extract(make_window())
    assert "device_memory" not in missing_resources(features.evidence)
    assert window_value(features, "resources_measured") == 0.0
    assert np.isnan(window_value(features, "max_device_memory_vs_nominal"))
