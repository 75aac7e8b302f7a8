"""Labels say what was done, windows keep the format, and everything follows from the seed."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from simulated import fault, phase, scenario

from rca.features import RANK_FEATURES, extract
from rca.lab.simulation import (
    FAULTS,
    LabelledWindow,
    SimulationScenario,
    Telemetry,
    corpus_window,
    generate_corpus,
    sample_scenario,
    simulate,
)
from rca.lab.simulation.corpus import sampled
from rca.lab.simulation.faults import FIRST_CAUSES
from rca.window.window import Window
from rca.workers import HERE
from tests.for_each import for_each

pytestmark = pytest.mark.slow

each_of_corpus = pytest.mark.parametrize("index", range(40))


@cache
def made_of(index: int) -> LabelledWindow:
    return corpus_window(7, index)


def _validated(window: Window) -> Window:
    return Window.from_tables(window.job, window.steps, window.metrics, window.events, window.ops)


def _same(left: Window, right: Window) -> bool:
    return left.to_json() == right.to_json()


@pytest.mark.system
def test_the_same_scenario_gives_the_same_window():
    drawn = sample_scenario(np.random.default_rng(5))
    first, again = simulate(drawn), simulate(SimulationScenario.model_validate_json(drawn.model_dump_json()))
    assert _same(first.window, again.window)
    assert first.label == again.label


def test_another_seed_gives_another_window():
    drawn = scenario("gpu_throttling")
    other = simulate(drawn.model_copy(update={"seed": 12}))
    assert not _same(simulate(drawn).window, other.window)


@pytest.mark.long
def test_a_corpus_does_not_depend_on_the_number_of_workers(two_workers):
    alone = [made_of(index) for index in range(10)]
    assert _same(next(generate_corpus(10, 7, workers=HERE)).window, alone[0].window)
    counted: list[int] = []
    shared = list(generate_corpus(10, 7, workers=two_workers, progress=lambda done, _n: counted.append(done)))
    assert counted == list(range(1, 11))
    assert all(_same(a.window, b.window) and a.label == b.label for a, b in zip(alone, shared, strict=True))


@pytest.mark.system
@each_of_corpus
def test_sampled_windows_pass_validation_and_keep_their_types(index):
    made = made_of(index)
    checked = _validated(made.window)
    assert checked.notes == ()
    assert checked.metrics.schema == made.window.metrics.schema
    assert _same(checked, made.window)


def test_windows_survive_a_round_trip_through_a_directory(tmp_path):
    from rca.sources.read import read_window

    made = simulate(scenario("cpu_contention"))
    made.window.to_directory(tmp_path / "window")
    assert _same(read_window(tmp_path / "window"), made.window)


@each_of_corpus
def test_labels_keep_the_format(index):
    made = made_of(index)
    label, job = json.loads(json.dumps(made.label)), made.window.job
    slow = [cause for cause in label["causes"] if FAULTS[cause["cause"]].straggler_type]
    mode = {(False, True): "healthy", (True, True): "fail_slow"}
    assert label["failure_mode"] == mode.get(
        (bool(label["causes"]), len(slow) == len(label["causes"])), "fail_stop"
    )
    assert (label["straggler_type"] is not None) == (label["failure_mode"] == "fail_slow")
    assert (label["pattern"] is not None) == (label["failure_mode"] == "fail_slow")
    known = set(job.topology.node_names)
    first, end = made.scenario.first_step_number, made.scenario.first_step_number + made.scenario.n_steps
    for cause in label["causes"]:
        assert cause["cause"] in cause["accepted"]
        assert cause["ranks"]
        assert max(cause["ranks"]) < job.world_size
        assert set(cause["nodes"]) <= known
        assert first <= cause["first_step"] < end
        assert cause["last_step"] is None or cause["first_step"] <= cause["last_step"] < end


def test_an_invisible_fault_is_labelled_healthy_with_a_note():
    drawn = scenario("gpu_throttling")
    faint = drawn.faults[0].model_copy(update={"severity": 0.01})
    label = simulate(drawn.model_copy(update={"faults": (faint,)})).label
    assert label["failure_mode"] == "healthy"
    assert label["visible"] is False
    assert label["impact"]["ratio"] < 1.05
    assert "gpu_throttling" in label["notes"]


def test_costs_of_two_causes_on_different_resources_add_up_to_the_whole():
    drawn = scenario("nic_degradation")
    both = drawn.model_copy(update={"faults": (*drawn.faults, fault("gpu_throttling"))})
    label = simulate(both).label
    assert [cause["cause"] for cause in label["causes"]] == ["nic_degradation", "gpu_throttling"]
    counted = both.n_steps - both.benign.warmup_steps
    acting = 31
    whole = (label["impact"]["step_during_s"] - label["impact"]["step_before_s"]) * acting / counted
    assert sum(cause["seconds_per_step"] for cause in label["causes"]) == pytest.approx(whole, rel=0.01)


def test_a_cause_hidden_behind_a_slower_one_saves_little_but_costs_alone():
    drawn = scenario("gpu_throttling")
    behind = fault("gpu_throttling", ranks=(6,), nodes=(3,), severity=0.5)
    label = simulate(drawn.model_copy(update={"faults": (*drawn.faults, behind)})).label
    hidden = label["causes"][1]
    assert hidden["ranks"] == [6]
    assert hidden["seconds_per_step"] < 0.05 * hidden["alone_seconds_per_step"]


def test_the_crashed_rank_stops_first_and_no_rank_finishes_the_step():
    drawn = scenario("process_crash")
    made = simulate(drawn)
    step = phase(made.window, "step_seconds")
    assert np.isfinite(step[:, :20]).all()
    assert np.isnan(step[:, 20:]).all()
    assert made.label["failure_mode"] == "fail_stop"
    assert made.label["causes"][0]["last_step"] is None


def test_a_hang_is_silent_for_many_steps():
    made = simulate(scenario("hang"))
    steps = made.window.steps.to_pandas()
    usual = steps.step_seconds.median()
    assert made.window.job.end - steps.start_time.max() > 10 * usual
    backward = phase(made.window, "backward_seconds")[:, 20]
    assert np.isfinite(np.delete(backward, 2)).all()
    assert np.isnan(backward[2])


@pytest.mark.parametrize("ending", ["complete", "cut", "lagging", "finished"])
def test_a_window_that_ends_within_a_step_is_healthy(ending):
    drawn = scenario()
    telemetry = drawn.telemetry.model_copy(update={"ending": ending})
    made = simulate(drawn.model_copy(update={"telemetry": telemetry}))
    assert made.label["failure_mode"] == "healthy"
    per_rank = made.window.steps.to_pandas().groupby("rank").size()
    assert per_rank.max() == drawn.n_steps
    assert (per_rank.min() < drawn.n_steps) == (ending == "lagging")
    unfinished = np.isnan(made.window.steps.column("step_seconds").to_numpy()).any()
    assert unfinished == (ending == "cut")


def test_some_windows_end_long_after_the_job():
    def silence(seed: int) -> float:
        drawn = scenario(seed=seed)
        finished = drawn.telemetry.model_copy(update={"ending": "finished"})
        made = simulate(drawn.model_copy(update={"telemetry": finished}))
        steps = made.window.steps.to_pandas()
        return float((made.window.job.end - steps.start_time.max()) / steps.step_seconds.median())

    silences = [silence(seed) for seed in range(20)]
    assert min(silences) < 10
    assert max(silences) > 30


@for_each("cause", ["healthy", *FAULTS])
def test_a_requested_cause_is_simulated(cause):
    rng = np.random.default_rng(1)
    for _ in range(3):
        drawn = sampled(rng, 1 if cause in {"healthy", *FIRST_CAUSES} else 2, cause=cause)
        assert [fault.cause for fault in drawn.faults][:1] == ([] if cause == "healthy" else [cause])


def test_an_unknown_cause_is_refused():
    with pytest.raises(ValueError, match="unknown cause 'gremlins'"):
        sample_scenario(np.random.default_rng(0), cause="gremlins")


def test_a_fault_beyond_the_job_is_refused():
    with pytest.raises(ValueError, match="names a rank beyond the world size 8"):
        scenario("gpu_throttling", faults=(fault("gpu_throttling", ranks=(8,)),))


@pytest.mark.long
def test_about_a_third_of_a_corpus_is_healthy_and_all_dialects_occur():
    rng = np.random.default_rng(2)
    drawn = [sample_scenario(rng) for _ in range(150)]
    healthy = np.mean([not item.faults for item in drawn])
    assert 0.25 < healthy < 0.45
    assert {item.dialect for item in drawn} == {"gpu_cluster", "cpu_testbed", "mixed"}
    assert 0.05 < np.mean([len(item.faults) == 2 for item in drawn if item.faults]) < 0.25


def test_peers_of_a_crashed_rank_fail_or_wait():
    """Where no connection breaks, watchdogs report in the end what they would of a hang."""
    waited, failed = 0, 0
    for seed in range(16):
        telemetry = Telemetry(events=True)
        events = simulate(
            scenario("process_crash", dialect="mixed", seed=seed, telemetry=telemetry)
        ).window.events
        kinds, codes = events["kind"].to_pylist(), events["code"].to_pylist()
        broken = "1" in codes
        waited += "nccl_timeout" in kinds
        failed += broken
        assert not ("nccl_timeout" in kinds and broken)
    assert min(waited, failed) > 0


@pytest.mark.parametrize("dialect", ["cpu_testbed", "mixed"])
def test_a_crashed_rank_uses_no_cpu(dialect):
    """Whether peers fail or wait, some rank uses more of a core afterwards than the crashed rank."""
    telemetry = Telemetry(exporters=("process",), interval_seconds=0.2)
    for seed in range(6):
        drawn = scenario("process_crash", dialect=dialect, seed=seed, telemetry=telemetry)
        aftermath = extract(simulate(drawn).window).rank[:, RANK_FEATURES.index("cpu_after")]
        if np.isfinite(aftermath[2]):
            assert aftermath[2] < 0.05
            assert aftermath[2] < np.nanmax(aftermath)
