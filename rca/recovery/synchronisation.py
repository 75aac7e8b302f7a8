"""Actions that change how many workers one update waits for: backup workers and grouped synchronisation.

Both change the number of samples of an update. The time is therefore compared per sample and, where the
gradient noise scale is known, per unit of progress: `rca.runtime.star.price` holds the price.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.recovery.option import Gain, Option, SingleAction, Weight, option
from rca.recovery.situation import Situation
from rca.robust import group_members, largest_of_each, nan_mean, nan_median
from rca.runtime.star.price import grouped_step_seconds, partial_updates
from rca.runtime.star.selector import GROUPED, MAX_WORKERS, Selector

#: Backup workers drop the gradients of at most this share of the workers, but of one at least.
MAX_DROPPED = 0.1
#: Two groups of workers differ if their usual times differ by this share: STAR's rule for a straggler.
GROUPS_APART = 0.2
Groups = tuple[tuple[int, ...], ...]
#: Fewer workers than this have no part worth waiting for alone.
MIN_WORKERS = 3


@dataclass(frozen=True)
class SynchronisedWorkers:
    """The workers of a data-parallel job.

    Attributes
    ----------
    seconds : ndarray of shape (n_workers, n_steps), seconds
        Work of the slowest rank of each worker; NaN where none finished the step.
    transfer : ndarray of shape (n_steps,), seconds
    """

    seconds: FloatArray
    transfer: FloatArray
    ranks: list[IntArray]

    @property
    def n(self) -> int:
        return len(self.ranks)

    def without_last(self, most: int) -> FloatArray:
        """Step times if the last workers of each step are not waited for.

        Returns
        -------
        ndarray of shape (most, n_steps), seconds
            Row ``k`` waits for all but ``k + 1`` workers; NaN where fewer finished the step.
        """
        known = np.where(np.isnan(self.seconds), -np.inf, self.seconds)
        last = np.sort(np.partition(known, self.n - 1 - most, axis=0)[self.n - 1 - most :], axis=0)
        seconds: FloatArray = last[-2::-1][:most] + self.transfer
        return np.where(np.isfinite(seconds), seconds, np.nan)

    def slower_group(self) -> IntArray:
        """Workers above the largest gap between usual times, ascending; empty if it is narrow."""
        usual = nan_median(self.seconds, axis=1)
        order = np.argsort(usual)
        ratio = usual[order][1:] / np.maximum(usual[order][:-1], 1e-12)
        ratio = np.where(np.isfinite(ratio), ratio, 1.0)
        gap = int(np.argmax(ratio))
        return np.sort(order[gap + 1 :]) if ratio[gap] >= 1.0 + GROUPS_APART else order[:0]

    def groups(self, situation: Situation) -> Groups:
        """Groups of workers that update together, fast ones first; one group is synchronous training.

        With a known gradient noise scale and batch STAR's learned selector divides them, as it beats the
        heuristic (`python -m benchmarks star-selector`). Without them, or with more workers than it has
        learned from, the slower workers are a group.
        """
        noise, batch = situation.site.gradient_noise_scale, situation.global_batch
        steps = self.seconds + self.transfer
        known = bool((nan_median(steps, axis=1) > 0).all())
        if noise is not None and batch is not None and known and self.n <= MAX_WORKERS:
            return Selector.shipped().choose(steps, batch / self.n, noise, kinds=GROUPED).groups
        slow = self.slower_group()
        fast = np.setdiff1d(np.arange(self.n), slow)
        return tuple(tuple(group.tolist()) for group in (fast, slow) if group.size)

    @classmethod
    def of(cls, situation: Situation) -> SynchronisedWorkers | str:
        """The workers of the job, or why their synchronisation cannot change."""
        replay, topology = situation.replay, situation.topology
        if situation.mode != "fail_slow":
            return "the job is not slow"
        if replay is None or topology is None or not replay.informative:
            return "needs the phases of every rank"
        if topology.n_stages > 1:
            return "the stages of a pipeline depend on each other's output"
        groups = group_members(topology.worker)
        if len(groups) < MIN_WORKERS:
            return f"needs {MIN_WORKERS} or more workers"
        # Groups are in the order of the workers' numbers.
        return cls(largest_of_each(replay.own, topology.worker), replay.transfer, groups)


class BackupWorkers(SingleAction):
    """AntDT's `BACKUP_WORKERS`: an update does not wait for the last few workers; their samples are lost."""

    name = "backup_workers"
    weight: Weight = "light"

    def _judged(self, situation: Situation) -> Option | str:
        workers = SynchronisedWorkers.of(situation)
        if isinstance(workers, str):
            return workers
        n = workers.n
        most = max(int(n * MAX_DROPPED), 1)
        penalties = [_partial_updates((n - dropped) / n, situation) for dropped in range(1, most + 1)]
        changed = workers.without_last(most) * np.array(penalties)[:, None]
        means = nan_mean(changed, axis=1)
        best = int(np.nanargmin(means)) if np.isfinite(means).any() else 0
        found, dropped = situation.saved(changed[best]), best + 1
        if found is None or found[1][0] <= 0:
            return "the lost samples cost more than the wait for the last workers"
        return option(
            self,
            Gain(*found, "replay"),
            chance=1.0,
            causes=[fault.cause for fault in situation.faults],
            ranks=[rank for each in situation.suspects for rank in each.ranks],
            risk=f"loses the samples of {dropped} of {n} workers per step, mostly of the stragglers",
            instruction=f"average the first {n - dropped} gradients of each step; weight by samples seen",
        )


class GroupedSynchronisation(SingleAction):
    """STAR: workers of like speed update in groups, so that the fast do not wait for the slow."""

    name = "grouped_synchronisation"
    weight: Weight = "light"

    def _judged(self, situation: Situation) -> Option | str:
        workers = SynchronisedWorkers.of(situation)
        if isinstance(workers, str):
            return workers
        groups = workers.groups(situation)
        if len(groups) < 2 and workers.slower_group().size:
            return "the wait for slow workers costs less than stale updates would"
        if len(groups) < 2:
            return f"no group of workers is usually {GROUPS_APART:.0%} slower than the others"
        found = situation.saved(self._changed(workers, groups, situation))
        if found is None or found[1][0] <= 0:
            return "smaller updates cost more iterations than the shorter steps save"
        saved, (low, high) = found
        # Stale updates may cost any part of it where the gradient noise is not known.
        known = situation.site.gradient_noise_scale is not None and situation.global_batch is not None
        return option(
            self,
            Gain(saved, (low if known else min(low, 0.0), high), "replay"),
            chance=max((each.probability for each in situation.suspects), default=1.0),
            causes=[fault.cause for fault in situation.faults],
            ranks=sorted(
                int(rank) for group in groups[1:] for worker in group for rank in workers.ranks[worker]
            ),
            risk="updates of slow groups are stale; lower the learning rate with the group's size",
            instruction=_instruction(groups),
        )

    def _changed(self, workers: SynchronisedWorkers, groups: Groups, situation: Situation) -> FloatArray:
        """Step time with which synchronous training would make the same progress, shape (n_steps,)."""
        shares = np.array([len(group) / workers.n for group in groups])
        seconds = np.array([np.fmax.reduce(workers.seconds[list(group)], axis=0) for group in groups])
        site = situation.site
        return grouped_step_seconds(
            shares, seconds + workers.transfer, site.gradient_noise_scale, situation.global_batch
        )


def _instruction(groups: Groups) -> str:
    if len(groups) == 2:
        return "let the slow workers form a group of their own that joins when it is done"
    sizes = ", ".join(str(len(group)) for group in groups)
    return f"let workers of like speed update in groups of {sizes}, fast ones first"


class AdjustLearningRate(SingleAction):
    """AntDT's `ADJUST_LR`: belongs to actions that change the samples per update; saves nothing alone."""

    name = "adjust_learning_rate"
    weight: Weight = "light"

    def _judged(self, situation: Situation) -> Option | str:  # noqa: ARG002
        return "saves no time alone; goes with backup workers and grouped synchronisation"


def _partial_updates(share: float, situation: Situation) -> float:
    return partial_updates(share, situation.site.gradient_noise_scale, situation.global_batch)
