"""Actions that change the ranks' work, replayed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.recovery.all_reduce import StragglerAwareAllReduce
from rca.recovery.checkpoints import CheckpointInterval, lost_share
from rca.recovery.planner import plan
from rca.recovery.site import Site
from rca.recovery.synchronisation import BackupWorkers, GroupedSynchronisation
from rca.recovery.work_shares import (
    MAX_SHARE,
    MIN_SHARE,
    PARTS,
    SHORT_WINDOW,
    AdjustBatchSizes,
    equal_finish,
)
from rca.runtime.star.price import UpdateProgress, partial_updates
from rca.runtime.star.selector import GROUPED, Selector
from tests.recovery.situations import STEPS, fault, job, replay_of, situation, slow_rank

SECONDS = st.floats(0.01, 1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=9))
def test_no_other_shares_finish_earlier(workers: list[tuple[float, float]]) -> None:
    fixed, scales = (np.array(each) for each in zip(*workers, strict=True))
    shares = equal_finish(fixed, scales)
    assert shares.mean() == pytest.approx(1.0, abs=1e-6)
    assert (shares >= MIN_SHARE - 1e-9).all()
    assert (shares <= MAX_SHARE + 1e-9).all()
    last = (fixed + scales * shares).max()
    # A worker that finishes last can give nothing away: all others are full or as late.
    part = 1.5 * scales.max() / PARTS
    others = (shares < MAX_SHARE - 1e-6) & (fixed + scales * shares < last - part)
    givers = (fixed + scales * shares > last - 1e-9) & (shares > MIN_SHARE + 1e-6)
    assert not (others.any() and givers.all() and givers.any() and not givers.all())
    assert last <= (fixed + scales).max() + 1e-9


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=3), st.integers(1, 8))
def test_whole_samples_are_dealt_out_with_the_shortest_step(
    workers: list[tuple[float, float]], each: int
) -> None:
    fixed, scales = (np.array(values) for values in zip(*workers, strict=True))
    total = each * len(workers)
    sizes = equal_finish(fixed, scales, total) * each
    assert sizes == pytest.approx(np.round(sizes))
    assert sizes.sum() == pytest.approx(total)
    allowed = range(max(int(MIN_SHARE * each), 1), -int(-MAX_SHARE * each // 1) + 1)
    least = min(
        (fixed + scales / each * np.array(other)).max()
        for other in itertools.product(allowed, repeat=len(workers))
        if sum(other) == total
    )
    assert (fixed + scales / each * sizes).max() == pytest.approx(least)


def test_a_worker_without_a_time_keeps_its_share() -> None:
    shares = equal_finish(np.zeros(3), np.array([0.1, np.nan, 0.2]), 33)
    assert shares.tolist() == [15 / 11, 1.0, 7 / 11]


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_a_batch_with_few_samples_is_not_shifted(samples: int) -> None:
    assert equal_finish(np.zeros(3), np.array([0.1, 0.1, 0.4]), samples).tolist() == [1.0] * 3


@pytest.mark.parametrize(("bubble", "saved"), [(1.0, 0.0), (0.01, 0.0297)])
def test_moved_layers_save_what_the_replay_of_the_pipeline_says(bubble: float, saved: float) -> None:
    """Stages that work one after another take the sum of their work, however it is spread."""
    of = job(4, pipeline=2)
    forward = np.repeat(np.where(of.topology.stage == 1, 0.08, 0.05)[:, None], STEPS, axis=1)
    replay = replace(replay_of(forward, of), bubble=bubble)
    replay = replace(replay, replayed=replay.evaluate(replay.own, replay.serial, replay.transfer))
    found = plan(situation(job=of, replay=replay, faults=(fault("stage_imbalance", (2, 3)),)))
    options = {each.action: each.seconds_per_step_saved for each in found.options}
    if saved:
        assert options["rebalance_stages"] == pytest.approx(saved, rel=1e-6)
    else:
        assert "rebalance_stages" not in options
        assert {each.action: each.reason for each in found.rejected}["rebalance_stages"] == "it saves nothing"


def test_batches_of_the_first_steps_follow_these_steps() -> None:
    """A rank that is slow from the first step on has its smaller batch in all steps."""
    (found,) = AdjustBatchSizes().options(situation(forward=slow_rank()[:, :SHORT_WINDOW]))
    (longer,) = AdjustBatchSizes().options(situation())
    assert found.seconds_per_step_saved == pytest.approx(longer.seconds_per_step_saved)


def test_batches_by_speed_take_the_wait_away() -> None:
    """One of eight at two thirds of the speed: all finish together after 8 / (7 + 2/3) of a usual step."""
    (found,) = AdjustBatchSizes().options(situation())
    usual, late = 0.1, 0.15
    balanced = usual * 8 / (7 + usual / late)
    assert found.seconds_per_step_saved == pytest.approx(late - balanced, rel=0.01)
    assert found.basis == "replay"


def test_batches_do_not_follow_a_straggler_that_changes_every_step() -> None:
    rng = np.random.default_rng(0)
    forward = slow_rank(late={0: 1.0})
    forward[rng.integers(0, 8, STEPS), np.arange(STEPS)] *= 1.5
    (found,) = AdjustBatchSizes().options(situation(forward=forward))
    gained = getattr(found, "seconds_per_step_saved", 0.0)
    assert gained < 0.005


def test_a_backup_worker_is_worth_it_only_for_a_long_wait() -> None:
    """Without its samples 8 / 7 as many steps are needed."""
    (found,) = BackupWorkers().options(situation(forward=slow_rank(late={5: 3.0})))
    assert found.seconds_per_step_saved == pytest.approx(0.31 - 0.11 * 8 / 7)
    (refused,) = BackupWorkers().options(situation(forward=slow_rank(late={5: 1.1})))
    assert "lost samples" in refused.reason


def test_two_groups_progress_by_their_samples() -> None:
    (found,) = GroupedSynchronisation().options(situation(forward=slow_rank(late={5: 2.0, 6: 2.0})))
    rate = (6 / 8) / 0.11 + (2 / 8) / 0.21
    assert found.seconds_per_step_saved == pytest.approx(0.21 - 1 / rate)
    assert found.ranks == [5, 6]
    assert found.interval[0] == 0.0


def test_a_small_gradient_noise_scale_makes_partial_updates_cheap() -> None:
    noisy = situation(site=Site(gradient_noise_scale=1e6), global_batch=1000.0)
    calm = situation(site=Site(gradient_noise_scale=10.0), global_batch=1000.0)
    assert partial_updates(0.5, 1e6, 1000.0) == pytest.approx(2.0, rel=0.01)
    assert partial_updates(0.5, 10.0, 1000.0) == pytest.approx(1.01, rel=0.01)
    (few,) = BackupWorkers().options(replace(calm, replay=replay_of(slow_rank(late={5: 1.1}), job())))
    (many,) = BackupWorkers().options(replace(noisy, replay=replay_of(slow_rank(late={5: 1.1}), job())))
    assert few.seconds_per_step_saved == pytest.approx(0.12 - 0.11 * (1 + 10 / 875) / (1 + 10 / 1000))
    assert "lost samples" in many.reason


def test_the_planner_has_the_price_and_the_choice_of_star() -> None:
    seconds = np.array([0.11] * 7 + [0.41])
    changed = situation(
        forward=slow_rank(late={7: 4.0}), site=Site(gradient_noise_scale=300.0), global_batch=800.0
    )
    (found,) = GroupedSynchronisation().options(changed)
    mode = Selector.shipped().choose(np.tile(seconds[:, None], 16), 100.0, 300.0, kinds=GROUPED)
    assert len(mode.groups) > 1
    progress = UpdateProgress(seconds, 100.0, 300.0)
    gained = 0.41 - progress.of_groups(mode.groups) / float(progress.iterations(8))
    assert found.seconds_per_step_saved == pytest.approx(gained)
    assert 7 in found.ranks


def test_workers_that_are_a_little_slower_wait_where_samples_are_plenty() -> None:
    few = situation(
        forward=slow_rank(4, late={3: 1.3}),
        job=job(4),
        site=Site(gradient_noise_scale=0.1),
        global_batch=1e4,
    )
    (refused,) = GroupedSynchronisation().options(few)
    assert "stale updates" in refused.reason


def test_more_workers_than_were_learned_from_are_divided_by_speed() -> None:
    many = job(14, per_node=2)
    changed = situation(
        job=many,
        forward=slow_rank(14, late={5: 4.0}),
        site=Site(gradient_noise_scale=300.0),
        global_batch=1400.0,
    )
    (found,) = GroupedSynchronisation().options(changed)
    assert found.ranks == [5]


def test_workers_of_like_speed_have_no_groups() -> None:
    (refused,) = GroupedSynchronisation().options(situation(forward=slow_rank(late={5: 1.1})))
    assert "slower" in refused.reason


def test_a_late_rank_hides_the_reduction_of_the_others() -> None:
    """8 ranks: a ring takes 14 of 8 parts of the tensor, StragglAR 9 of 7 after the last rank has arrived."""
    late = situation(job=job(), forward=slow_rank(), transfer=0.02)
    (found,) = StragglerAwareAllReduce().options(late)
    assert found.seconds_per_step_saved == pytest.approx(0.02 * (1 - (9 / 7) / (14 / 8)))
    assert found.ranks == [5]


@pytest.mark.parametrize("late", [1.0, 1.03])
def test_a_short_delay_does_not_hide_it(late: float) -> None:
    (refused,) = StragglerAwareAllReduce().options(
        situation(forward=slow_rank(late={5: late}), transfer=0.02)
    )
    assert "break-even" in refused.reason


@pytest.mark.parametrize("times", [0.1, 10.0])
def test_the_best_interval_between_checkpoints_loses_the_least(times: float) -> None:
    """A checkpoint of 2 s every 30 steps, failures every 10,000 s: sqrt(2 * 2 * 10,000) = 200 s is best."""
    best, between = 200.0, 10_000.0
    of = job()
    held = replay_of(slow_rank(), of)
    written = np.zeros((8, STEPS))
    written[3, 10::30] = 2.0
    held = replace(held, seconds={**held.seconds, "checkpoint_seconds": written})
    site = Site(failure_seconds=between, checkpoint_seconds=best * times)
    (found,) = CheckpointInterval().options(situation(replay=held, site=site))
    step = float(held.measured.mean())
    assert found.seconds_per_step_saved == pytest.approx(
        step * (lost_share(2.0, best * times, between) - lost_share(2.0, best, between))
    )
    assert "every 200 s" in found.instruction
    near = Site(failure_seconds=between, checkpoint_seconds=best * 1.05)
    (refused,) = CheckpointInterval().options(situation(replay=held, site=near))
    assert "near the best" in refused.reason


def test_pipelines_keep_their_batches() -> None:
    for action in (AdjustBatchSizes(), BackupWorkers(), GroupedSynchronisation()):
        (refused,) = action.options(situation(job=job(pipeline=2)))
        assert "pipeline" in refused.reason
