"""Random workers that lease, report, die and expire; the bookkeeping is checked after each step.

The machine runs on any `ShardService`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rca.runtime.data_shards.leases import Checkpoint, LeaseState, ShardReport, ShardService
from rca.runtime.data_shards.shard_plan import Shard, ShardPlan

LEASE_SECONDS = 10.0


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def __call__(self) -> float:
        return self.at


@dataclass
class Seen:
    """A lease as its worker has seen it: `credited` are offsets that the service has counted."""

    shard: Shard
    start: int
    stop: int
    credited: int
    ended: bool = False


Open = Callable[[ShardPlan, Clock], ShardService]


class ShardMachine(RuleBasedStateMachine):
    """Subclasses say how a service is opened."""

    open: Open

    @initialize(
        n_samples=st.integers(1, 40),
        shard_size=st.integers(1, 12),
        n_epochs=st.integers(1, 3),
        seed=st.integers(0, 5),
    )
    def begin(self, n_samples: int, shard_size: int, n_epochs: int, seed: int) -> None:
        self.clock = Clock()
        self.plan = ShardPlan(n_samples, shard_size, n_epochs, seed, lease_seconds=LEASE_SECONDS)
        self.service = type(self).open(self.plan, self.clock)
        self.leases: dict[str, Seen] = {}
        self.names = 0
        self.has_split = False
        #: Leases that a restore has dropped.
        self.past: list[Seen] = []
        self.kept: tuple[Checkpoint, list[Seen]] | None = None

    @rule(worker=st.integers(0, 3), samples=st.none() | st.integers(1, 5))
    def fetch(self, worker: int, samples: int | None) -> None:
        self.names += 1
        name = f"lease-{self.names}"
        offer = self.service.lease(f"worker-{worker}", name, samples)
        if offer.lease is None:
            assert offer.finished == self.service.progress().finished
            # The end of a lease is a sum of floats.
            assert offer.finished or 0 <= offer.wait_seconds <= LEASE_SECONDS * (1 + 1e-9)
            return
        # A repeated call gets the same lease.
        assert self.service.lease(f"worker-{worker}", name).lease == offer.lease
        assert offer.lease.start == offer.lease.done
        assert offer.lease.stop > offer.lease.start
        assert samples is not None or offer.lease.stop == offer.lease.shard.size or self.has_split
        self.has_split |= samples is not None
        self.leases[name] = Seen(offer.lease.shard, offer.lease.start, offer.lease.stop, offer.lease.start)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.leases)))
        seen = self.leases[name]
        done = data.draw(st.integers(seen.start, seen.stop))
        for _ in range(2):
            # The second one is a repetition, as after a lost answer.
            [receipt] = self.service.report([ShardReport(name, done)])
            assert receipt.accepted == (done <= receipt.done)
            assert receipt.done in (seen.credited, max(done, seen.credited))
            if seen.ended:
                assert receipt.done == seen.credited
            seen.credited = receipt.done
            seen.ended = receipt.state is not LeaseState.held

    @rule(worker=st.integers(0, 3))
    def die(self, worker: int) -> None:
        self.service.release(f"worker-{worker}")

    @rule(seconds=st.floats(0.5, 12.0))
    def wait(self, seconds: float) -> None:
        self.clock.at += seconds

    @rule()
    def keep(self) -> None:
        copies = [replace(each) for each in (*self.past, *self.leases.values())]
        self.kept = self.service.checkpoint(), copies

    @precondition(lambda self: self.kept is not None)
    @rule()
    def restore(self) -> None:
        """Leases from before are gone; what they had been credited by the checkpoint counts."""
        before = [ShardReport(name, each.stop) for name, each in self.leases.items()]
        checkpoint, self.past = self.kept
        self.leases, self.kept = {}, None
        self.service.restore(checkpoint)
        assert not any(receipt.accepted for receipt in self.service.report(before))

    @invariant()
    def every_sample_counts_once(self) -> None:
        if not hasattr(self, "service"):
            return
        progress = self.service.progress()
        counts = self.credited()
        assert set(counts.values()) <= {1}
        assert progress.samples == len(counts)
        for epoch in progress.epochs:
            assert epoch.todo + epoch.doing + epoch.done == self.plan.n_shards
            assert epoch.samples == sum(number == epoch.epoch for number, _ in counts)

    def credited(self) -> Counter[tuple[int, int]]:
        """How often each sample of each epoch was counted."""
        counts: Counter[tuple[int, int]] = Counter()
        for seen in (*self.past, *self.leases.values()):
            for sample in self.plan.samples(seen.shard, seen.start, seen.credited).tolist():
                counts[seen.shard.epoch, sample] += 1
        return counts

    def teardown(self) -> None:
        """One worker trains what is left: then no sample is lost either."""
        if not hasattr(self, "service"):
            return
        self.clock.at += 2 * LEASE_SECONDS
        while (lease := self.service.lease("last").lease) is not None:
            [receipt] = self.service.report([ShardReport(lease.id, lease.stop)])
            assert receipt.state is LeaseState.finished
            self.leases[lease.id] = Seen(lease.shard, lease.start, lease.stop, receipt.done, ended=True)
        assert self.service.progress().finished
        expected = {(epoch, k) for epoch in range(self.plan.n_epochs) for k in range(self.plan.n_samples)}
        counts = self.credited()
        assert set(counts) == expected
        assert set(counts.values()) == {1}
