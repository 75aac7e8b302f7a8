import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.features import RANK_FEATURES, WINDOW_FEATURES, describe, extract
from rca.features.job_features import periodicity
from rca.features.post_stop_signals import PostStopSignals
from rca.features.resource_evidence import RESOURCES, resource_names
from rca.high_segment import high_segment
from rca.robust import leader_and_runner_up, nan_quantile, peer_reference
from rca.window import Window


def rank_column(features, name):
    return features.rank[:, RANK_FEATURES.index(name)]


def window_value(features, name):
    return features.window[WINDOW_FEATURES.index(name)]


def test_table_documents_every_column_once():
    for rows in describe().values():
        names = [row.name for row in rows]
        assert len(names) == len(set(names))
        assert all(row.unit and row.meaning for row in rows)


def test_the_late_rank_has_the_excess_and_the_waiting_ranks_have_none(make_window):
    features = extract(make_window(late={5: 0.03}))
    excess = rank_column(features, "own_time_excess")
    assert excess.argmax() == 5
    assert excess[5] == pytest.approx(0.03 / features.work.step_reference, rel=0.1)
    assert np.abs(np.delete(excess, 5)).max() < 0.02
    assert rank_column(features, "wait_deficit").argmax() == 5


def test_gain_is_the_time_saved_per_step(make_window):
    """With two late ranks, fixing the later one saves only the distance to the other."""
    features = extract(make_window(late={2: 0.02, 5: 0.03}, noise=1e-6))
    gain = rank_column(features, "gain_rank") * features.work.step_reference
    assert gain[5] == pytest.approx(0.01, rel=0.02)
    assert gain[2] == 0.0


def test_a_late_node_has_a_gain_and_its_ranks_have_none(make_window):
    features = extract(make_window(late={2: 0.03, 3: 0.03}, noise=1e-6))
    unit = features.work.step_reference
    assert rank_column(features, "gain_node")[2] * unit == pytest.approx(0.03, rel=0.02)
    assert rank_column(features, "gain_rank").max() * unit < 0.001


def test_late_ranks_are_found_when_half_of_the_peers_are_late(make_window):
    features = extract(make_window(n_ranks=16, ranks_per_node=8, late=dict.fromkeys(range(8), 0.03)))
    excess = rank_column(features, "own_time_excess")
    assert excess[:8].min() > 5 * np.abs(excess[8:]).max()


def test_the_slow_segment_is_found(make_window):
    features = extract(make_window(n_steps=60, late={1: 0.05}, steps=slice(20, 45)))
    segment = features.comparison.segment
    assert (segment.first, segment.last) == (20, 44)
    assert window_value(features, "slow_segment_found") == 1.0


def test_unsplit_communication_gives_the_same_excess(make_window):
    window = make_window(late={5: 0.03})
    wait = window.steps["communication_wait_seconds"].to_numpy()
    moved = window.steps["communication_transfer_seconds"].to_numpy()
    table = window.steps.drop_columns(["communication_wait_seconds", "communication_transfer_seconds"])
    import pyarrow as pa

    unsplit = Window.from_tables(
        window.job, table.append_column("communication_seconds", pa.array(wait + moved))
    )
    split, whole = extract(window), extract(unsplit)
    assert np.allclose(
        rank_column(split, "own_time_excess"), rank_column(whole, "own_time_excess"), atol=1e-6
    )


def test_step_times_alone_give_no_excess(make_window):
    features = extract(make_window(late={5: 0.03}, columns=("rank", "step", "start_time", "step_seconds")))
    assert not np.isfinite(rank_column(features, "own_time_excess")).any()


def test_scaling_all_times_leaves_every_relative_feature(make_window):
    window = make_window(late={5: 0.03})
    names = [name for name in window.steps.column_names if name.endswith("_seconds")]
    table = window.steps
    start = table["start_time"].to_numpy()
    import pyarrow as pa

    for name in names:
        table = table.set_column(table.column_names.index(name), name, pa.array(table[name].to_numpy() * 7.0))
    origin = window.job.start
    table = table.set_column(2, "start_time", pa.array(origin + (start - origin) * 7.0))
    job = window.job.model_copy(update={"end": origin + (window.job.end - origin) * 7.0})
    scaled = extract(Window.from_tables(job, table))
    assert np.allclose(extract(window).rank, scaled.rank, rtol=1e-6, atol=1e-9, equal_nan=True)


def test_a_rank_that_stops_in_mid_step_is_behind(real_windows):
    import rca

    features = extract(rca.read_window(real_windows / "killed-rank"))
    assert rank_column(features, "steps_behind").argmin() == 4
    assert window_value(features, "unfinished_share") == 1.0


@given(st.lists(st.floats(-5, 5) | st.just(float("nan")), min_size=1, max_size=30), st.floats(0, 1))
def test_nan_quantile_equals_numpy(values, q):
    array = np.array(values)
    if np.isnan(array).all():
        assert np.isnan(nan_quantile(array[:, None], q)[0])
    else:
        assert nan_quantile(array[:, None], q)[0] == pytest.approx(np.nanquantile(array, q), abs=1e-9)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_nan_quantile_has_all_of_numpys_axes(shape):
    values = np.random.default_rng(3).random(shape)
    values.flat[::4] = np.nan
    for axis in range(-len(shape), len(shape)):
        expected = np.nanquantile(values, 0.3, axis=axis)
        assert nan_quantile(values, 0.3, axis) == pytest.approx(expected, nan_ok=True)
    with pytest.raises(np.exceptions.AxisError):
        nan_quantile(values, 0.3, len(shape))


@given(st.permutations(list(range(12))))
def test_peer_reference_follows_a_permutation_of_ranks(order):
    values = np.random.default_rng(0).normal(size=(12, 3))
    group = np.arange(12) % 3
    assert np.allclose(peer_reference(values, group)[order], peer_reference(values[order], group[order]))


def test_a_small_group_is_compared_with_the_others_only():
    reference = peer_reference(np.array([[1.0], [5.0]]), np.zeros(2, dtype=np.int64))
    assert reference.ravel().tolist() == [5.0, 1.0]


def test_a_rank_without_peers_has_no_peer_reference():
    assert np.isnan(peer_reference(np.ones((2, 1)), np.array([0, 1]))).all()


def test_leader_and_runner_up_ignore_nan():
    first, leader, second = leader_and_runner_up(np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, 2.0]]))
    assert first.tolist() == [3.0, 2.0]
    assert leader.tolist() == [1, 2]
    assert second[0] == 1.0
    assert np.isnan(second[1])


def test_one_spike_is_no_segment():
    series = np.ones(50)
    series[20] = 10.0
    assert high_segment(series).whole


def test_a_sawtooth_is_periodic():
    series = np.ones(60)
    series[::6] = 3.0
    period, strength = periodicity(series)
    assert period == 6.0
    assert strength > 0.8


def test_a_single_change_of_level_is_not_periodic():
    series = np.concatenate([np.ones(30), 2 * np.ones(30)])
    assert periodicity(series)[1] < 0.5


def _exits(window: Window, *, after: float, code: str) -> Window:
    """The same window, seen half a minute longer, with an exit of rank 2."""
    import pyarrow as pa

    job = window.job.model_copy(update={"end": window.job.end + 30.0})
    events = pa.table(
        {
            "time": [window.job.end + after],
            "node": pa.nulls(1, pa.string()),
            "rank": pa.array([2], pa.int32()),
            "kind": ["process_exit"],
            "code": [code],
            "message": ["exited"],
        }
    )
    return Window.from_tables(job, window.steps, None, events)


@pytest.mark.parametrize("after", [0.0, 5.0])
def test_fatal_delay_counts_from_the_last_progress(make_window, after):
    """A crash exits at once. A watchdog ends a hung process much later."""
    window = make_window()
    features = extract(_exits(window, after=after, code="-9"))
    unit = features.work.step_reference
    assert window_value(features, "fatal_delay") == pytest.approx(min(after / unit, 100.0), abs=1.0)
    assert window_value(features, "any_fatal_event") == 1.0


def test_an_orderly_exit_is_not_fatal(make_window):
    features = extract(_exits(make_window(), after=0.0, code="0"))
    assert window_value(features, "any_fatal_event") == 0.0
    assert np.isnan(window_value(features, "fatal_delay"))


def _metrics(name: str, window: Window, values: dict[int, float]) -> pa.Table:
    """Ten samples of a gauge per rank, the same from first to last."""
    times = np.linspace(window.job.start, window.job.end, 10)
    ranks = np.repeat(list(values), times.size)
    return pa.table(
        {
            "time": np.tile(times, len(values)),
            "name": [name] * ranks.size,
            "rank": pa.array(ranks, pa.int32()),
            "value": np.repeat(list(values.values()), times.size).astype(float),
        }
    )


def test_a_nominal_score_shows_a_fault_that_all_ranks_have_from_the_start(make_window):
    """Thermal slowdown (0x40) on every GPU: no peer and no past is better, but a healthy GPU shows none."""
    metrics = _metrics("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", make_window(), dict.fromkeys(range(8), 64.0))
    features = extract(make_window(metrics=metrics))
    assert window_value(features, "max_gpu_clock_vs_peers") == 0.0
    assert np.isnan(window_value(features, "max_gpu_clock_vs_past"))
    assert (rank_column(features, "gpu_clock_vs_nominal") > 3.0).all()
    assert window_value(features, "median_gpu_clock_vs_nominal") == window_value(
        features, "max_gpu_clock_vs_nominal"
    )
    channel = RESOURCES["gpu_clock"][
        features.evidence.worst_channel[0, resource_names().index("gpu_clock")]
    ].channel
    assert (channel, features.evidence.references[channel][0]) == ("throttled", 1.0)


def test_load_has_no_nominal_value(make_window):
    values = dict.fromkeys(range(8), 9.0)
    features = extract(make_window(metrics=_metrics("node_load1", make_window(), values)))
    assert window_value(features, "max_cpu_load_vs_peers") == 0.0
    assert np.isnan(window_value(features, "max_cpu_load_vs_nominal"))


def test_growth_on_all_ranks_is_measured_per_phase(make_window):
    """All ranks load for longer from step 20 on: no rank is above its peers."""
    late = dict.fromkeys(range(8), 0.03)
    features = extract(make_window(late=late, steps=slice(20, 40), phase="data_loading_seconds"))
    unit = features.work.step_reference
    assert window_value(features, "data_loading_growth_job") * unit == pytest.approx(0.03, rel=0.05)
    assert abs(window_value(features, "forward_growth_job")) < 0.01


def test_small_deviations_score_zero(make_window):
    """A difference of 0.7 degrees says nothing of a machine; one of 4 degrees scores half a unit."""
    metrics = _metrics("DCGM_FI_DEV_GPU_TEMP", make_window(), dict.fromkeys(range(8), 60.0) | {3: 60.7})
    assert window_value(extract(make_window(metrics=metrics)), "max_gpu_heat_vs_peers") == 0.0
    metrics = _metrics("DCGM_FI_DEV_GPU_TEMP", make_window(), dict.fromkeys(range(8), 60.0) | {3: 64.0})
    assert window_value(extract(make_window(metrics=metrics)), "max_gpu_heat_vs_peers") == pytest.approx(0.5)


@pytest.mark.parametrize(("code", "score"), [(31.0, 0.0), (94.0, 8.0)])
def test_xid_codes_of_programs_are_no_evidence_of_a_device(make_window, code: float, score: float):
    metrics = _metrics("DCGM_FI_DEV_XID_ERRORS", make_window(), dict.fromkeys(range(8), 0.0) | {3: code})
    assert window_value(extract(make_window(metrics=metrics)), "max_gpu_memory_vs_peers") == score


def test_a_dead_process_releases_memory_and_a_hung_one_keeps_it():
    before = {"gpu_memory_used": np.full(3, 6e4), "gpu_power": np.array([300.0, 300.0, np.nan])}
    after = {"gpu_memory_used": np.array([0.0, 6e4, 6e4]), "gpu_power": np.array([60.0, 150.0, 150.0])}
    seen = PostStopSignals.from_channels(before, after, 3)
    np.testing.assert_array_equal(seen.rank_features()["memory_after"], [0.0, 1.0, 1.0])
    np.testing.assert_array_equal(seen.rank_features()["power_after"], [0.2, 0.5, np.nan])
    assert seen.job_features()["min_memory_after"] == 0.0


def test_gpu_activity_prefers_utilisation_which_waiting_keeps_high():
    after = {"sm_active": np.array([0.02, 0.0]), "gpu_util": np.array([100.0, 0.0])}
    np.testing.assert_array_equal(PostStopSignals.from_channels(after, after, 2).gpu, [1.0, 0.0])


def _with_columns(window: Window, columns: dict[str, np.ndarray]) -> Window:
    """The same window with other columns of steps, each of shape (n_rows,)."""
    table = window.steps
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return Window.from_tables(window.job, table)


def test_work_outside_all_timers_is_found_on_its_rank(make_window):
    """Rank 3 blocks for 30 ms in every step, in no timed phase, and the others wait for it."""
    window = make_window(late={3: 0.03}, noise=1e-6)
    forward, rank = (window.steps[name].to_numpy() for name in ("forward_seconds", "rank"))
    blocked = _with_columns(window, {"forward_seconds": np.where(rank == 3, forward - 0.03, forward)})
    features = extract(blocked)
    excess = rank_column(features, "untimed_excess") * features.work.step_reference
    assert excess[3] == pytest.approx(0.03, rel=0.02)
    assert np.abs(np.delete(excess, 3)).max() < 0.001
    assert window_value(features, "max_untimed_excess") == rank_column(features, "untimed_excess")[3]
    assert window_value(extract(window), "max_untimed_excess") < 0.01


def test_without_timed_phases_nothing_is_outside_of_them(make_window):
    kept = ("rank", "step", "start_time", "step_seconds", "communication_wait_seconds")
    features = extract(make_window(columns=kept))
    assert np.isnan(rank_column(features, "untimed_excess")).all()
    assert np.isnan(window_value(features, "largest_phase_share"))


def test_the_share_of_the_longest_phase_is_of_each_rank_and_step(make_window):
    """Half of the ranks load for most of the step, and the other half computes for most of it."""
    window = make_window(noise=1e-6)
    rank, usual = window.steps["rank"].to_numpy(), extract(window).work.step_reference
    loads = np.where(rank < 4, 0.9 * usual, 0.05 * usual)
    changed = _with_columns(window, {"data_loading_seconds": loads, "forward_seconds": 0.95 * usual - loads})
    assert window_value(extract(changed), "largest_phase_share") == pytest.approx(0.9, rel=0.01)


def test_pauses_and_untimed_time_are_shares_of_the_usual_step(make_window):
    window = make_window(n_steps=40, noise=1e-6)
    step, start = (window.steps[name].to_numpy() for name in ("step", "start_time"))
    usual = extract(window).work.step_reference
    paused = extract(_with_columns(window, {"start_time": start + usual * (step > step.min() + 20)}))
    assert window_value(paused, "pauses") == pytest.approx(1 / 40, rel=0.1)
    assert window_value(paused, "untimed") == 0.0
    whole = window.steps["step_seconds"].to_numpy()
    longer = _with_columns(window, {"step_seconds": whole + usual * (step == step.min() + 20)})
    assert window_value(extract(longer), "untimed") == pytest.approx(1 / 40, rel=0.1)
