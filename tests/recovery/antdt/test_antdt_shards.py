"""Shards: each sample counts once per epoch, whatever workers do."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_machine import Clock
from stored_shards import NewShards

from rca.errors import InvalidInput
from rca.runtime.data_shards import shard_plan
from rca.runtime.data_shards.leases import MAX_EPOCHS_SHOWN, Checkpoint, LeaseState, ShardReport
from rca.runtime.data_shards.shard_plan import MAX_EPOCHS, ShardPlan
from tests.for_each import for_each


@pytest.fixture
def clock() -> Clock:
    return Clock()


def shards(clock: Clock, n_samples: int = 20, shard_size: int = 8, **more) -> NewShards:
    return NewShards(ShardPlan(n_samples, shard_size, lease_seconds=10.0, **more), clock)


def test_a_killed_worker_loses_and_repeats_no_sample(clock: Clock) -> None:
    service = shards(clock, n_samples=8)
    lease = service.lease("a").lease
    service.report([ShardReport(lease.id, 3)])
    assert service.lease("b").wait_seconds == 10.0
    service.release("a")
    again = service.lease("b").lease
    assert (again.shard, again.start) == (lease.shard, 3)
    late = service.report([ShardReport(lease.id, 7)])[0]
    assert (late.accepted, late.done, late.state) == (False, 3, LeaseState.released)
    assert service.progress().samples == 3


def test_reports_renew_a_lease_and_silence_ends_it(clock: Clock) -> None:
    service = shards(clock)
    lease = service.lease("a").lease
    for _ in range(5):
        clock.at += 9
        assert service.report([ShardReport(lease.id, 1)])[0].state is LeaseState.held
    clock.at += 10
    assert service.report([ShardReport(lease.id, 2)])[0].state is LeaseState.expired
    assert service.lease("b").lease.start == 1


def test_an_older_report_that_arrives_late_takes_nothing_back(clock: Clock) -> None:
    service = shards(clock)
    lease = service.lease("a").lease
    service.report([ShardReport(lease.id, 5)])
    assert service.report([ShardReport(lease.id, 2)])[0].done == 5


def test_one_bad_report_leaves_the_others_uncounted(clock: Clock) -> None:
    service = shards(clock)
    one, two = service.lease("a").lease, service.lease("a").lease
    with pytest.raises(InvalidInput, match="the report says 99"):
        service.report([ShardReport(one.id, 1), ShardReport(two.id, 99)])
    assert service.progress().samples == 0


def test_the_next_epoch_begins_while_the_last_shard_is_trained(clock: Clock) -> None:
    service = shards(clock, n_epochs=2)
    leases = [service.lease("a").lease for _ in range(4)]
    assert [lease.shard.epoch for lease in leases] == [0, 0, 0, 1]
    service.report([ShardReport(lease.id, lease.shard.size) for lease in leases[1:]])
    first, second = service.progress().epochs
    assert (first.todo, first.doing, first.done) == (0, 1, 2)
    assert (second.todo, second.doing, second.done) == (2, 0, 1)


def test_a_checkpoint_of_other_shards_is_refused(clock: Clock) -> None:
    service = shards(clock)
    for wrong in (
        Checkpoint(4, ()),
        Checkpoint(2, ((2, 0),)),
        Checkpoint(2, ((1, 0), (0, 0))),
        Checkpoint(2, ((0, 8),)),
    ):
        with pytest.raises(InvalidInput):
            service.restore(wrong)


def test_a_checkpoint_of_an_earlier_version_has_no_ends(clock: Clock) -> None:
    service = shards(clock, n_samples=16)
    service.restore(Checkpoint(2, ((0, 3), (1, 0))))
    assert service.checkpoint().open == ((0, 3, 8), (1, 0, 8))


def test_a_lease_id_belongs_to_one_worker(clock: Clock) -> None:
    service = shards(clock)
    service.lease("a", "one")
    with pytest.raises(InvalidInput, match="another worker"):
        service.lease("b", "one")
    service.release("a")
    with pytest.raises(InvalidInput, match="has ended: released"):
        service.lease("a", "one")


def test_a_stale_report_does_not_count_for_a_lease_that_has_its_id(clock: Clock) -> None:
    service = shards(clock)
    kept = service.checkpoint()
    service.lease("b", "one")
    service.restore(kept)
    for worker, message in (("z", "another worker"), ("b", "has ended: dropped")):
        with pytest.raises(InvalidInput, match=message):
            service.lease(worker, "one")
    service.lease("z", "two")
    [stale] = service.report([ShardReport("one", 7)])
    assert (stale.accepted, stale.state) == (False, LeaseState.unknown)
    assert service.progress().samples == 0


def test_a_restore_of_many_epochs_builds_no_order_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the largest sets took 0.3 s for each epoch with an open shard."""
    built: list[int] = []
    monkeypatch.setattr(shard_plan, "_order", lambda _seed, _stream, length: built.append(length))
    plan = ShardPlan((1 << 20) * 3 - 1, 3, MAX_EPOCHS)
    service = NewShards(plan)
    at = [epoch * plan.n_shards + 7 for epoch in range(0, 6000, 100)]
    service.restore(Checkpoint(at[-1] + 1, tuple((position, 1) for position in at)))
    found = service.progress()
    assert (found.n_open, found.n_done) == (60, 5900 - 59)
    for _ in at:
        service.lease("a")
    assert service.release("a") == 60
    assert not built


def test_progress_lists_few_epochs_however_many_there_are() -> None:
    """Shard 0 stays open while all others of ten thousand epochs are done."""
    plan = ShardPlan(2, 1, MAX_EPOCHS)
    found = Checkpoint(plan.n_positions, ((0, 0),)).progress(plan)
    assert [each.epoch for each in found.epochs] == [0]
    assert (found.n_open, found.n_done, found.samples) == (1, MAX_EPOCHS - 1, 2 * MAX_EPOCHS - 1)
    many = Checkpoint(plan.n_positions, tuple((2 * epoch, 0) for epoch in range(MAX_EPOCHS)))
    assert len(many.progress(plan).epochs) == MAX_EPOCHS_SHOWN
    assert many.progress(plan).n_open == MAX_EPOCHS


@settings(max_examples=60)
@given(n_samples=st.integers(1, 300), shard_size=st.integers(1, 20), seed=st.integers(0, 99))
def test_sizes_of_shards_add_up_in_every_order(n_samples: int, shard_size: int, seed: int) -> None:
    plan = ShardPlan(n_samples, shard_size, 2, seed)
    found = [plan.shard(position) for position in range(plan.n_shards, plan.n_positions)]
    assert sorted(each.first for each in found) == list(range(0, n_samples, shard_size))
    assert [plan.size(each.position) for each in found] == [each.size for each in found]
    for n_shards in range(plan.n_shards + 1):
        assert plan.n_handed_out(1, n_shards) == sum(each.size for each in found[:n_shards])


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_has_every_sample_in_an_order_of_its_own(shuffle: bool) -> None:
    plan = ShardPlan(1003, 50, 2, seed=4, shuffle=shuffle)
    epochs = [
        np.concatenate(
            [plan.samples(plan.shard(p)) for p in range(e * plan.n_shards, (e + 1) * plan.n_shards)]
        )
        for e in range(2)
    ]
    for order in epochs:
        assert sorted(order.tolist()) == list(range(1003))
    assert (epochs[0].tolist() != epochs[1].tolist()) == shuffle
    assert (epochs[0].tolist() != list(range(1003))) == shuffle


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    plan = ShardPlan(1000, 100, 3, seed=7)
    assert [plan.shard(p).first for p in (0, 1, 10, 29)] == FIRST
    assert plan.samples(plan.shard(3))[:4].tolist() == SAMPLES


FIRST, SAMPLES = [500, 600, 500, 600], [25, 12, 0, 70]


@for_each(
    ("wrong", "message"),
    [
        ({"n_samples": 0}, "n_samples is 0"),
        ({"shard_size": 0}, "shard_size is 0"),
        ({"n_epochs": 0}, "n_epochs is 0"),
        ({"n_epochs": 10_001}, "n_epochs is 10,001, not 1 to 10,000"),
        ({"seed": -1}, "seed is -1"),
        ({"lease_seconds": 0.0}, "lease_seconds is 0.0"),
        ({"n_samples": 1 << 40, "shard_size": 1}, "at most 1,048,576 are possible"),
    ],
)
def test_impossible_plans_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ShardPlan(**{"n_samples": 10, "shard_size": 5} | wrong)


@pytest.mark.system
def test_the_package_needs_no_torch() -> None:
    names = (
        "antdt",
        "antdt.agent",
        *(f"data_shards.{name}" for name in ("shard_client", "shard_sampler")),
    )
    modules = ", ".join(f"rca.runtime.{name}" for name in names)
    code = f"import {modules}, sys; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
