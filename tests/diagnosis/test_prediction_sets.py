"""Plausible alternatives, and features in the user's units."""

from __future__ import annotations

import pytest

import rca
from rca.diagnosis.bundle import baseline
from rca.diagnosis.data_quality import in_user_units
from rca.features import describe


def test_an_ignorant_bundle_gives_no_sets(make_window, doubting) -> None:
    diagnosis = rca.diagnose(make_window(late={5: 0.05}), bundle=doubting())
    assert (diagnosis.set_level, diagnosis.failure_mode_set) == (None, [])
    assert diagnosis.stragglers
    assert diagnosis.stragglers[0].plausible_causes == []


def test_sets_rule_out_what_is_below_its_floor(make_window, doubting, settled) -> None:
    window = make_window(late={5: 0.1}, phase="data_loading_seconds")
    diagnosis = rca.diagnose(window, bundle=doubting(sets=settled))
    assert diagnosis.set_level == 0.9
    assert diagnosis.failure_mode_set == ["fail_slow"]
    plausible = diagnosis.stragglers[0].plausible_causes
    assert diagnosis.causes[0].cause in plausible
    assert len(plausible) <= 3


def test_sets_that_rule_nothing_out_hold_everything(make_window, doubting, undecided) -> None:
    diagnosis = rca.diagnose(make_window(late={5: 0.05}), bundle=doubting(sets=undecided))
    assert set(diagnosis.failure_mode_set) == {"healthy", "fail_slow", "fail_stop"}
    assert set(diagnosis.stragglers[0].plausible_causes) == set(baseline().classifier.heads["cause"].classes)


def test_a_stopped_jobs_causes_have_prediction_sets_of_stops(
    real_windows, doubting, settled, undecided
) -> None:
    window = rca.read_window(real_windows / "killed-rank")
    for sets in (settled, undecided):
        plausible = rca.diagnose(window, bundle=doubting(sets=sets)).stragglers[0].plausible_causes
        assert set(plausible) <= {"process_crash", "hang"}
        assert "process_crash" in plausible


@pytest.mark.parametrize(
    ("name", "value", "shown", "unit"),
    [
        ("log2_ranks", 6.0, 64.0, "ranks"),
        ("step_noise", 0.5, 0.05, "s"),
        ("resources_measured", 0.25, 25.0, "percent"),
        ("pipeline_stages", 3.0, 3.0, ""),
    ],
)
def test_units_are_those_people_use(name: str, value: float, shown: float, unit: str) -> None:
    feature = next(each for each in describe()["window"] if each.name == name)
    assert in_user_units(feature, value, step_seconds=0.1) == (pytest.approx(shown), unit)
