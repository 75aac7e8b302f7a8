"""Realism is measured: equal distributions are called equal, shifted ones are found and named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.cli import run
from rca.errors import InvalidInput
from rca.evaluation.realism.discriminator import auc, discriminate
from rca.evaluation.realism.distances import benjamini_hochberg, distance, kolmogorov_p, quantile_within
from rca.evaluation.realism.effects import effects, largest, severity_effects
from rca.evaluation.realism.features import (
    FeatureDistance,
    feature_distances,
    largest_distances,
    missing_differences,
)
from rca.evaluation.realism.measure import Level, Measured, columns, measured
from rca.evaluation.realism.run import compare
from rca.evaluation.realism.subject import is_comparable, subject_of
from rca.evaluation.realism.traces import evenness, like, of_window, variation_by_type
from rca.evaluation.realism.twin import ratio_at, twin
from rca.simulation import simulate
from rca.telemetry.labels import Label, LabelledCause, read_label
from rca.telemetry.read import read_window
from rca.whatif.optypes import FORWARD

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
floats = st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=30).map(np.array)


def fake(rng: np.random.Generator, group: int, *, shift: float = 0.0, throttled: float = 0.4) -> Measured:
    """A window whose features are standard normal but for one that may be shifted."""
    features = rng.normal(size=len(columns()))
    features[columns().index("victim cpu_wait_vs_past")] += shift
    return Measured(
        group=str(group),
        cause="cpu_contention",
        mechanism="cpu_quota",
        features=features,
        levels={
            "victim cpu_throttled": Level(rng.normal(0.005, 0.001), rng.normal(throttled, 0.02)),
            "victim forward": Level(rng.normal(0.25, 0.01), rng.normal(0.3, 0.01)),
        },
        ratio=rng.normal(1.5, 0.02),
        severity=1.0,
    )


def sides(shift: float, throttled: float = 0.4) -> tuple[list[Measured], list[Measured]]:
    # Of nine seeds two draw sides that a forest tells apart by chance; this is none of them.
    rng = np.random.default_rng(4)
    return (
        [fake(rng, group, shift=shift, throttled=throttled) for group in range(60)],
        [fake(rng, group) for group in range(60) for _ in range(2)],
    )


def test_equal_distributions_are_called_equal() -> None:
    real, simulated = sides(shift=0.0)
    found = discriminate(real, simulated, seed=1)
    # Cross-validation is a little pessimistic where there is nothing to find.
    assert 0.3 < found.auc.value < 0.65
    assert found.auc.low < 0.5
    distances = feature_distances(real, simulated)
    assert sum(each.differs for each in distances) <= 0.01 * len(distances)
    assert not [each for each in effects(real, simulated, np.random.default_rng(0)) if each.apart]


def test_a_shifted_feature_is_found_and_named() -> None:
    real, simulated = sides(shift=4.0)
    found = discriminate(real, simulated, seed=1)
    assert found.auc.low > 0.9
    assert next(iter(found.importance)) == "victim cpu_wait_vs_past"
    assert found.by_cause["cpu_contention"].value > 0.95
    first = largest_distances(feature_distances(real, simulated), 5)[0]
    assert (first.feature, first.cause) == ("victim cpu_wait_vs_past", "cpu_contention")
    assert first.distance.real - first.distance.simulated == pytest.approx(4.0, abs=0.6)


def test_a_weaker_effect_is_found_with_its_size() -> None:
    real, simulated = sides(shift=0.0, throttled=0.1)
    found = largest(effects(real, simulated, np.random.default_rng(0)), 5)
    assert {(each.quantity, each.moment) for each in found} == {
        ("victim cpu_throttled", "ratio"),
        ("victim cpu_throttled", "during"),
    }
    assert all(each.quantile == 0.0 and each.doublings < -1.5 for each in found)


def test_steps_longer_than_their_label_says_are_found() -> None:
    real, _ = sides(shift=0.0)
    at_label = {one.group: np.full(4, 1.2) for one in real}
    (found,) = severity_effects(real, at_label, np.random.default_rng(0))
    assert found.apart
    assert found.simulated.value == pytest.approx(1.2)
    assert found.real.value == pytest.approx(1.5, abs=0.02)


def test_a_feature_that_one_side_lacks_is_named() -> None:
    real, simulated = sides(shift=0.0)
    column = columns().index("victim load_correlation")
    for one in simulated:
        one.features[column] = np.nan
    (found,) = missing_differences(feature_distances(real, simulated), 5)
    assert found.feature == "victim load_correlation"
    assert (found.distance.missing_real, found.distance.missing_simulated) == (0.0, 1.0)


@given(floats, st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_distances_have_no_unit(values: np.ndarray, scale: float, offset: float) -> None:
    other = values[::-1] * 0.5 + 1.0
    one = distance(values, other)
    two = distance(values * scale + offset, other * scale + offset)
    spread = np.ptp(np.concatenate([values, other]))
    # Offsets may swallow differences that are tiny beside them.
    if spread > 1e-3:
        assert two.wasserstein == pytest.approx(one.wasserstein, rel=1e-3, abs=1e-6)


@given(floats)
def test_a_sample_has_no_distance_to_itself(values: np.ndarray) -> None:
    found = distance(values, values)
    assert (found.ks, found.wasserstein, found.p) == (0.0, 0.0, 1.0)


def test_distances_agree_with_an_independent_implementation() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(3)
    left, right = rng.normal(size=80), rng.normal(0.4, 1.3, size=120)
    found = distance(left, right)
    expected = stats.ks_2samp(left, right, method="asymp")
    assert found.ks == pytest.approx(expected.statistic)
    assert found.p == pytest.approx(expected.pvalue, rel=0.25)
    low, high = np.quantile(np.concatenate([left, right]), (0.1, 0.9))
    assert found.wasserstein == pytest.approx(stats.wasserstein_distance(left, right) / (high - low))


def test_a_difference_nobody_would_remark_stays_small() -> None:
    left, right = np.full(20, 1e-4), np.zeros(20)
    assert distance(left, right).wasserstein > 0.9
    assert distance(left, right, least_spread=0.01).wasserstein == pytest.approx(0.01)


def test_the_kolmogorov_distribution_has_its_tabulated_quantile() -> None:
    assert kolmogorov_p(1.358 / np.sqrt(1000), 2000, 2000) == pytest.approx(0.05, abs=0.002)


def test_rates_are_corrected_for_many_tests() -> None:
    q = benjamini_hochberg(np.array([0.01, np.nan, 0.04, 0.03, 0.005]))
    assert q[[0, 2, 3, 4]] == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert np.isnan(q[1])


def test_areas_under_the_curve_count_ties_half() -> None:
    is_real = np.array([True, True, False, False])
    assert auc(np.array([3.0, 2.0, 1.0, 0.0]), is_real) == 1.0
    assert auc(np.array([1.0, 1.0, 1.0, 1.0]), is_real) == 0.5
    assert auc(np.array([0.0, 2.0, 1.0, 1.0]), is_real) == 0.5
    assert np.isnan(auc(np.array([1.0]), np.array([True])))


def test_quantiles_count_ties_half() -> None:
    assert quantile_within(2.0, np.array([1.0, 2.0, 3.0, np.nan])) == 0.5
    assert np.isnan(quantile_within(float("nan"), np.array([1.0])))


@pytest.fixture(scope="module")
def contention(real_windows: Path):
    folder = real_windows / "cpu-contention-node"
    window, label = read_window(folder), read_label(folder)
    subject = subject_of("cpu-contention-node", window, label)
    found = measured(window, subject)
    return window, label, replace(subject, ratio=found.ratio), found


def test_a_capture_is_measured_before_and_during_its_fault(contention) -> None:
    _, label, subject, found = contention
    assert subject.victims == label.causes[0].ranks
    assert subject.cause == "cpu_contention"
    assert found.ratio > 1.1
    waiting = found.levels["victim host_runqueue_wait"]
    assert waiting.during > waiting.before
    step = found.levels["peers step"]
    assert step.before == pytest.approx(1.0, abs=0.05)
    assert step.during / step.before == pytest.approx(found.ratio, rel=0.05)
    assert len(found.features) == len(columns())


def test_a_twin_shares_what_the_capture_s_plan_decided(contention) -> None:
    window, _, subject, found = contention
    # Some drawn machines take no fault as badly, however severe; this one does.
    scenario = twin(subject, 1)
    assert scenario == twin(subject, 1)
    assert scenario != twin(subject, 8)
    assert scenario.world_size == window.job.world_size
    assert scenario.faults[0].ranks == subject.victims
    assert (scenario.faults[0].first_step, scenario.faults[0].last_step) == subject.span
    assert scenario.benign.harmless == ()
    assert ratio_at(scenario, scenario.faults[0].severity) == pytest.approx(found.ratio, rel=0.03)
    made = measured(simulate(scenario).window, subject)
    assert made.ratio == pytest.approx(found.ratio, rel=0.15)
    assert set(made.levels) & set(found.levels) >= {"victim forward", "peers psi_cpu", "victim tcp_rtt"}


def test_a_healthy_capture_has_healthy_twins(real_windows: Path) -> None:
    folder = real_windows / "healthy"
    window = read_window(folder)
    subject = subject_of("healthy", window, read_label(folder))
    assert subject.span is None
    assert twin(subject, 1).faults == ()
    found = measured(window, subject)
    drift = found.levels["peers forward"]
    assert drift.during / drift.before == pytest.approx(1.0, abs=0.15)
    assert found.ratio == pytest.approx(1.0, abs=0.15)
    assert np.isnan(found.levels["victim forward"].before)


def test_a_stopped_job_s_twin_stops_at_the_same_step(real_windows: Path) -> None:
    folder = real_windows / "killed-rank"
    window = read_window(folder)
    subject = subject_of("killed-rank", window, read_label(folder))
    assert subject.stops
    simulated = simulate(twin(subject, 3))
    assert simulated.label["failure_mode"] == "fail_stop"
    made = measured(simulated.window, subject)
    assert np.isfinite(made.levels["peers forward"].before)
    assert np.isnan(made.levels["peers forward"].during)


def test_a_label_that_hides_what_was_done_is_no_truth() -> None:
    quota = {"kind": "cpu_quota", "cause": "cpu_contention"}
    seen = Label(failure_mode="fail_slow", causes=(LabelledCause(cause="cpu_contention"),), injected=[quota])
    unseen = Label(failure_mode="healthy", injected=[quota])
    assert is_comparable(seen)
    assert not is_comparable(unseen)
    assert is_comparable(Label(failure_mode="healthy"))


@pytest.mark.slow
def test_processes_have_no_influence_on_the_comparison(real_windows: Path) -> None:
    alone = compare(real_windows, n_windows=16, seed=2)
    shared = compare(real_windows, n_windows=16, seed=2, processes=2)
    assert [one.features.tobytes() for one in alone.simulated] == [
        one.features.tobytes() for one in shared.simulated
    ]
    assert alone.discriminated.importance == shared.discriminated.importance


def test_a_collection_without_truth_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "windows": []}')
    with pytest.raises(InvalidInput, match="no capture"):
        compare(tmp_path)


@pytest.mark.slow
def test_the_command_writes_a_report(
    real_windows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("COLUMNS", "140")
    folder = tmp_path / "realism"
    with pytest.raises(SystemExit) as left:
        run(["realism", str(real_windows), "--windows", "24", "--processes", "1", "--output", str(folder)])
    assert not left.value.code
    assert "8 captures, 24 simulated windows" in capsys.readouterr().out
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "realism.md", "realism.json", "severity.png", "effects.png", "features.png", "discriminator.png",
    }  # fmt: skip
    found = json.loads((folder / "realism.json").read_bytes())
    assert found["n_real"] == 8
    assert 0 <= found["discriminator"]["auc"]["value"] <= 1
    assert {each["feature"] for each in found["features"]} == set(columns())
    report = (folder / "realism.md").read_text()
    for heading in ("Discriminator", "Largest differences of effect sizes", "Levels before any fault"):
        assert f"## {heading}" in report


def test_the_variation_of_operations_is_each_worker_s_own() -> None:
    rng = np.random.default_rng(0)
    worker = np.repeat(np.arange(4), 500)
    # Workers differ tenfold, yet each varies by a tenth.
    duration = 10.0**worker * rng.normal(1.0, 0.1, worker.size)
    found = variation_by_type(np.full(worker.size, FORWARD), worker, duration)
    assert found == {"forward-compute": pytest.approx(0.1, abs=0.01)}


def test_evenness_separates_steps_from_workers() -> None:
    stage = np.array([0, 0, 1, 1])
    steps = 1 + 0.1 * np.sin(np.arange(200.0))
    forward = np.outer([1.0, 1.2, 5.0, 6.0], steps)
    found = evenness(forward, 2 * forward, stage)
    assert found["forward variation"] == pytest.approx(0.1 / np.sqrt(2), rel=0.02)
    assert found["forward-backward correlation"] == pytest.approx(1.0)
    assert found["worker spread"] == pytest.approx(1 / 11)


def test_a_feature_is_covered_where_simulated_windows_reach_around_the_real_median() -> None:
    simulated = np.linspace(0.0, 1.0, 101)
    for real, covered in ((0.5, True), (0.07, True), (0.02, False), (3.0, False)):
        compared = FeatureDistance("all", "trend", distance(np.full(9, real), simulated), 0.5)
        assert compared.covered is covered


@pytest.mark.skipif(not TRACES.is_dir(), reason="no real operation traces beside this checkout")
def test_a_real_trace_is_compared_with_jobs_of_its_shape() -> None:
    from rca.evaluation.realism.traces import of_trace
    from rca.whatif.reader import read_trace

    folder = TRACES / "what-if"
    trace = read_trace(folder / "trace-ST.parquet", folder / "meta-ST.yaml")
    real = of_trace(trace)
    published = json.loads((folder / "result-ST.json").read_text())
    assert real.figures["slowdown"] == pytest.approx(1.1787, abs=2e-4), published.keys()
    assert {"forward-compute", "backward-compute"} <= set(real.variation)
    scenario = like(trace, "stage_imbalance", [0, 0])
    assert (scenario.parallelism.data, scenario.parallelism.pipeline) == (2, 4)
    made = of_window(simulate(scenario).window)
    assert made.figures["slowdown"] > 1.0
    assert set(made.figures) == set(real.figures)


def test_several_faults_are_a_mechanism_of_their_own(contention) -> None:
    window, label, subject, _ = contention
    other = label.causes[0].model_copy(update={"cause": "nic_degradation"})
    both = subject_of("both", window, label.model_copy(update={"causes": (*label.causes, other)}))
    assert both.mechanism == f"{subject.mechanism} + nic_degradation"
    assert both.cause == subject.cause
    assert np.isfinite(subject.severity)
    assert np.isnan(both.severity)
    assert [fault.cause for fault in twin(both, 1).faults] == ["cpu_contention", "nic_degradation"]
