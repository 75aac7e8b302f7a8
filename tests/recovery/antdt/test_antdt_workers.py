"""What runs in a worker: the sampler, and the agreement on decisions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_machine import Clock
from stored_shards import NewShards

from rca.errors import InvalidInput, SourceError
from rca.runtime.antdt import Decision, Monitor, NonDedicated, equal
from rca.runtime.antdt.agent import Agent
from rca.runtime.antdt.agreement import Agreement
from rca.runtime.data_shards.leases import Offer, ShardReceipt, ShardReport
from rca.runtime.data_shards.shard_client import ShardClient
from rca.runtime.data_shards.shard_plan import ShardPlan
from rca.runtime.data_shards.shard_sampler import ShardSampler


def opened(n_samples: int = 20, shard_size: int = 8, **more: Any) -> tuple[NewShards, Clock]:
    clock = Clock()
    return NewShards(ShardPlan(n_samples, shard_size, lease_seconds=10.0, **more), clock), clock


def test_batches_of_any_size_cover_each_epoch_once() -> None:
    service, clock = opened(n_epochs=2)
    sampler = ShardSampler(service, "a", itertools.cycle([3, 7, 1]).__next__, clock=clock)
    batches = list(sampler)
    assert [len(batch) for batch in batches][:4] == [3, 7, 1, 3]
    trained = np.concatenate(batches)
    for epoch in (trained[:20], trained[20:]):
        assert sorted(epoch.tolist()) == list(range(20))
    assert service.progress().finished
    assert sampler.repeated == 0


@settings(max_examples=6)
@given(seed=st.integers(0, 10_000), n_workers=st.integers(1, 4))
def test_workers_that_are_killed_and_replaced_train_each_sample_once(seed: int, n_workers: int) -> None:
    rng = np.random.default_rng(seed)
    service, clock = opened(60, 7, n_epochs=2)
    samplers = [ShardSampler(service, f"{rank}", report_seconds=0, clock=clock) for rank in range(n_workers)]
    trained: list[int] = []
    while not service.progress().finished:
        rank = int(rng.integers(n_workers))
        batch = samplers[rank].take(int(rng.integers(1, 9)))
        if rng.random() < 0.1:
            # Killed before its update counts.
            service.release(f"{rank}")
            samplers[rank] = ShardSampler(service, f"{rank}", report_seconds=0, clock=clock)
            continue
        samplers[rank].confirm()
        trained += batch.tolist()
    assert np.bincount(trained, minlength=60).tolist() == [2] * 60
    assert all(sampler.repeated == 0 for sampler in samplers)


@pytest.mark.parametrize("n_workers", [1, 3])
def test_shards_that_are_asked_for_ahead_are_trained_once(n_workers: int) -> None:
    service = NewShards(ShardPlan(200, 7, 2))
    samplers = [ShardSampler(service, f"{rank}", background=True) for rank in range(n_workers)]
    trained: list[int] = []
    while not all(sampler.finished for sampler in samplers):
        for sampler in samplers:
            trained += sampler.take(5).tolist()
            sampler.confirm()
    for sampler in samplers:
        sampler.close()
    assert np.bincount(trained, minlength=200).tolist() == [2] * 200
    assert service.progress().finished


class Flaky(NewShards):
    """Some calls have no answer; a lease is given all the same."""

    failing: set[str]
    asked: list[str]

    def lease(self, worker: str, lease_id: str | None = None, samples: int | None = None) -> Offer:
        self.asked.append(lease_id)
        offer = super().lease(worker, lease_id, samples)
        if "lease" in self.failing:
            raise SourceError("the service cannot be reached")
        return offer

    def report(self, reports: Sequence[ShardReport]) -> list[ShardReceipt]:
        if "report" in self.failing:
            raise SourceError("the service cannot be reached")
        return super().report(reports)


@pytest.fixture
def flaky() -> Flaky:
    service = Flaky(ShardPlan(40, 8))
    service.failing, service.asked = set(), []
    return service


def test_a_failed_request_ahead_of_time_is_made_again(flaky: Flaky) -> None:
    sampler = ShardSampler(flaky, "a", background=True)
    trained = sampler.take(1).tolist()
    flaky.failing.add("lease")
    trained += sampler.take(3).tolist()
    # The thread does one call after the other: now the request has failed.
    sampler.flush()
    assert len(flaky.asked) == 2
    flaky.failing.clear()
    while not sampler.finished:
        trained += sampler.take(3).tolist()
        sampler.confirm()
    assert sorted(trained) == list(range(40))
    sampler.close()


def test_a_lease_without_an_answer_is_asked_for_with_the_same_id(flaky: Flaky) -> None:
    flaky.failing.add("lease")
    sampler = ShardSampler(flaky, "a")
    for _ in range(2):
        with pytest.raises(SourceError):
            sampler.take(3)
    flaky.failing.clear()
    assert sampler.take(3).size == 3
    assert len(set(flaky.asked)) == 1
    assert flaky.progress().epochs[0].doing == 1


def test_a_lost_lease_that_has_ended_is_replaced(flaky: Flaky) -> None:
    flaky.failing.add("lease")
    sampler = ShardSampler(flaky, "a")
    with pytest.raises(SourceError):
        sampler.take(3)
    flaky.failing.clear()
    flaky.release("a")
    assert sampler.take(3).size == 3


def test_a_failed_report_is_sent_again_when_a_shard_ends(flaky: Flaky) -> None:
    flaky.failing.add("report")
    sampler = ShardSampler(flaky, "a")
    sampler.take(8)
    with pytest.raises(SourceError):
        sampler.confirm()
    flaky.failing.clear()
    sampler.confirm()
    assert flaky.progress().samples == 8


def test_training_beyond_the_lease_is_noticed() -> None:
    service, clock = opened()
    sampler = ShardSampler(service, "a", clock=clock)
    sampler.take(5)
    clock.at += 11
    sampler.confirm()
    assert sampler.repeated == 5
    assert service.progress().samples == 0
    # It goes on with what is free.
    assert sampler.take(5).size == 5


def test_a_worker_without_a_shard_gets_a_short_batch_at_once() -> None:
    service, clock = opened(8, 8)
    first, second = ShardSampler(service, "a", clock=clock), ShardSampler(service, "b", clock=clock)
    first.take(8)
    assert second.take(4).size == 0
    assert not second.finished
    first.close()
    assert second.take(10).size == 8
    second.confirm()
    assert second.take(1).size == 0
    assert second.finished


def test_workers_share_the_last_shard() -> None:
    """It stayed with the worker that had it, here for 32 steps."""
    service, clock = opened(32, 32)
    fast = [ShardSampler(service, f"{rank}", clock=clock) for rank in range(3)]
    slow = ShardSampler(service, "slow", clock=clock)
    trained: list[int] = []
    steps = 0
    while not slow.finished:
        for sampler, size in (*((each, 4) for each in fast), (slow, 1)):
            trained += sampler.take(size).tolist()
            sampler.confirm()
        steps += 1
    assert sorted(trained) == list(range(32))
    # 13 samples a step, and one step to see that all is done.
    assert steps <= 5


def test_what_is_given_back_is_trained_by_another_worker() -> None:
    service, clock = opened(20, 8)
    late, other = ShardSampler(service, "late", clock=clock), ShardSampler(service, "other", clock=clock)
    trained = late.take(2).tolist()
    late.confirm()
    late.take(3)
    late.give_back()
    trained += [sample for batch in iter(lambda: _trained(other), []) for sample in batch]
    assert sorted(trained) == list(range(20))
    assert late.repeated == other.repeated == 0


def _trained(sampler: ShardSampler) -> list[int]:
    batch = sampler.take(4).tolist()
    sampler.confirm()
    return batch


def test_reports_renew_leases_before_they_expire() -> None:
    service, clock = opened(1000, 1000)
    sampler = ShardSampler(service, "a", clock=clock)
    for _ in range(50):
        sampler.take(10)
        clock.at += 4
        sampler.confirm()
    assert sampler.repeated == 0
    sampler.flush()
    assert service.progress().samples == 500


class FakeStore:
    """The store of a job, in memory."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None


@given(lags=st.lists(st.integers(0, 1), min_size=20, max_size=20), published=st.sets(st.integers(0, 18)))
def test_ranks_that_read_early_or_late_switch_at_the_same_step(lags: list[int], published: set[int]) -> None:
    """A rank may read after rank 0 has begun the next step, and then sees what is for the step after."""
    store, first = FakeStore(), Decision.of([2, 2])
    zero, other = Agreement(store, first), Agreement(store, first)
    seen: list[tuple[Decision, Decision]] = []
    version = 0
    used = {0: first}
    for step in range(20):
        if step in published:
            version += 1
            zero.publish(Decision(version, step + 1, (version, 4), (1, 1)))
        # The rank reads after its all-reduce of the step before: perhaps only now, when rank 0 is here.
        if step and lags[step - 1]:
            other.read()
        used[step] = zero.at(step)
        seen.append((used[step], other.at(step)))
        zero.read()
        if not lags[step]:
            other.read()
    assert all(mine == theirs for mine, theirs in seen)
    assert seen[-1][0].version == version


def run_job(slow: dict[int, float], n_steps: int) -> tuple[list[Agent], list[tuple[int, ...]]]:
    """Agents of four ranks in turn, with a clock each; a sample takes 10 ms."""
    store, first = FakeStore(), Decision.of(equal(4, 100))
    clocks = [Clock() for _ in range(4)]
    controller = NonDedicated(first, restart_seconds=1e9)
    agents = [
        Agent(store, rank, first, controller=None if rank else controller, clock=clocks[rank])
        for rank in range(4)
    ]
    sizes = []
    for _ in range(n_steps):
        assert all(agent.begin() for agent in agents)
        decisions = {agent.decision for agent in agents}
        assert len(decisions) == 1
        sizes.append(agents[0].decision.sizes)
        for agent in agents:
            for size, is_last in agent.passes():
                assert is_last
                agent.loss_scale(size)
                clocks[agent.rank].at += 0.01 * size * slow.get(agent.rank, 1.0)
                agent.gradients_are_ready()
        latest = max(clock.at for clock in clocks)
        for agent, clock in zip(agents, clocks, strict=True):
            clock.at = latest
            agent.end()
    return agents, sizes


def test_the_batch_of_a_slow_rank_shrinks_in_all_ranks_at_once() -> None:
    _, sizes = run_job({1: 3.0}, 20)
    assert sizes[0] == (25, 25, 25, 25)
    assert sizes[-1] == (30, 10, 30, 30)
    assert len(set(sizes)) == 2


def test_sizes_change_after_three_steps() -> None:
    _, sizes = run_job({1: 3.0}, 5)
    assert sizes[4] == (30, 10, 30, 30)


def test_the_wait_for_samples_is_not_the_work_of_a_rank() -> None:
    """Otherwise a slow service of shards makes one rank a straggler."""
    store, first = FakeStore(), Decision.of([1])
    clock, monitor, waited = Clock(), Monitor(1), [0.0]
    agent = Agent(
        store,
        0,
        first,
        controller=NonDedicated(first, 1.0),
        monitor=monitor,
        waited=lambda: waited[0],
        clock=clock,
    )
    for _ in range(5):
        agent.begin()
        clock.at += 0.75
        waited[0] += 0.5
        agent.loss_scale(1)
        agent.gradients_are_ready()
        agent.end()
    reading = monitor.reading(clock.at)
    assert reading.speed.tolist() == [4.0]
    assert reading.waited.tolist() == [0.5]


def test_equal_ranks_keep_their_batches() -> None:
    _, sizes = run_job({}, 20)
    assert set(sizes) == {(25, 25, 25, 25)}


def test_all_ranks_end_after_the_same_step() -> None:
    agents, _ = run_job({}, 3)
    for agent in agents:
        assert agent.begin()
    agents[0].stop()
    for agent in agents:
        agent.end()
        assert not agent.begin()


def test_a_controller_in_another_rank_is_refused() -> None:
    first = Decision.of([1, 1])
    with pytest.raises(InvalidInput, match="only rank 0"):
        Agent(FakeStore(), 1, first, controller=NonDedicated(first, 1.0))
    with pytest.raises(InvalidInput, match="there is no rank 2"):
        Agent(FakeStore(), 2, first)


@pytest.mark.system
def test_a_service_that_is_not_there_is_named() -> None:
    with pytest.raises(SourceError, match="/v1/data-shards/x cannot be used"):
        ShardClient("http://127.0.0.1:9", "x", retries=0)
    with pytest.raises(InvalidInput, match="is not an http or https address"):
        ShardClient("file:///etc", "x")
