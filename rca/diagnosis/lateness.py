"""Stage 1 of a diagnosis: who is late, in which steps and phases, at how many seconds per step.

Timing alone says it. Every lateness has its own steps, so two faults at two times are two latenesses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.diagnosis.timeline import Timeline
from rca.features.late_episodes import late_threshold
from rca.high_segment import high_segment
from rca.robust import nan_mean, nan_median, robust_spread, zero_if_nan

Kind = Literal[
    "ranks",
    "stage",
    "rotating",
    "transfer",
    "job",
    "pace",
    "spikes",
    "between",
    "untimed",
    "share",
    "bound",
    "place",
]
#: Kinds of lateness that all ranks share.
OF_ALL = frozenset({"rotating", "transfer", "job", "pace", "spikes", "between", "untimed", "share", "bound"})
#: Fewest late steps of a lateness, and the most latenesses of ranks.
MIN_LATE_STEPS, MAX_LATENESSES = 4, 8
#: Share of the usual step, and spreads of the ranks' medians, from which a rank is late all along.
CHRONIC, CHRONIC_SPREADS = 0.02, 4.0
#: Share of late steps in a lateness that lasts.
SOLID = 0.6
#: Least cost of a lateness as a share of the usual step: a lasting one, and one of single steps.
MIN_COST, MIN_COST_OF_SINGLE = 0.004, 0.02
#: Ranks belong together if their lateness is this share of the worst one's: on one node, and elsewhere.
ALIKE, ALIKE_ELSEWHERE = 0.4, (0.65, 1.55)
#: A rank's own part of the transfer is longer from this share of the step, and these spreads, on.
LATE_TRANSFER, LATE_TRANSFER_SPREADS = 0.04, 5.0
#: Least gain of a stage, as a share of the usual step, and least share of the steps without late ranks.
STAGE_GAIN, MIN_FREE = 0.02, 0.3
#: Shares of a stage's excess in its phases.
STAGE_PHASES = {"forward": 0.4, "backward": 0.6}


@dataclass(frozen=True)
class Lateness:
    """These ranks were late in these steps, in these phases.

    Attributes
    ----------
    kind : str
        ``ranks`` and ``stage`` differ from their peers. ``rotating``: another rank in each step. ``transfer``
        and ``job``: the transfer or the own work of all. ``pace``: whole steps, where nothing else is timed.
        ``spikes``, ``between``, ``untimed``: single steps, time between steps, or outside every timer.
        ``share``: an extreme share of the step. ``place`` and ``bound``: signals of some, or of all
        machines that stand out.
    steps : ndarray of shape (n_steps,), bool
    seconds : float
        Per step of the window, that the job would save.
    z : float
        Size in standard errors.
    phases : mapping of str to float, seconds per late step
        Phase names without their suffix, ``transfer``, and ``untimed``.
    planned, more_input : bool
        In a fixed cycle of steps; as much more input.
    may_be_work : bool
        No count of the input shows whether all ranks only had more to compute.
    """

    kind: Kind
    ranks: tuple[int, ...]
    steps: BoolArray
    seconds: float
    z: float
    phases: Mapping[str, float] = field(default_factory=dict)
    single: bool = False
    planned: bool = False
    more_input: bool = False
    may_be_work: bool = False

    @property
    def of_all(self) -> bool:
        """Whether all ranks share it."""
        return self.kind in OF_ALL


def late_ranks(line: Timeline) -> list[Lateness]:
    """Groups of late ranks, the costliest first; each is sought without the lateness of those before it."""
    excess = zero_if_nan(line.comparison.excess)
    chronic = _late_all_along(line)
    late = (excess > late_threshold(line.usual, line.noise)) | (chronic[:, None] & (excess > 0))
    left = np.where(late, excess, 0.0)
    own, found = line.replay.own.copy(), []
    for _ in range(MAX_LATENESSES):
        worst = int(np.minimum(left, line.usual).sum(axis=1).argmax())
        if int((left[worst] > 0).sum()) < MIN_LATE_STEPS:
            break
        steps, single = _late_steps(line, left[worst], worst, chronic=bool(chronic[worst]))
        members = _alike(line, left[:, steps], worst)
        taken = np.zeros(left.shape)
        taken[np.ix_(members, steps)] = left[np.ix_(members, steps)]
        lowered = np.maximum(own - taken, 0.0)
        gain, own = line.saved(own, lowered), lowered
        left[taken > 0] = 0.0
        error = max(line.noise, 1e-9) / np.sqrt(max(int(steps.sum()), 1))
        size = float(taken[worst][steps].mean())
        phases = excess_by_phase(line, members, steps)
        ranks = tuple(members.tolist())
        found.append(Lateness("ranks", ranks, steps, float(gain.mean()), size / error, phases, single=single))
    return _worth_it(found, line)


def _late_all_along(line: Timeline) -> BoolArray:
    """Ranks whose usual step is later than that of the others, bool of shape (n_ranks,)."""
    medians = nan_median(line.comparison.excess, axis=1)
    middle = float(nan_median(medians))
    spread = robust_spread(medians - middle)
    least = max(CHRONIC * line.usual, CHRONIC_SPREADS * spread, line.noise)
    return np.asarray(np.nan_to_num(medians) > least)


def _late_steps(line: Timeline, late: FloatArray, rank: int, *, chronic: bool) -> tuple[BoolArray, bool]:
    """The steps of a rank's lateness, and whether they are single ones: all, an episode, or single steps."""
    n, marked = late.size, late > 0
    first, past = int(line.comparison.episodes.first[rank]), int(line.comparison.episodes.past[rank])
    high = high_segment(late)
    if not high.whole and late[high.first : high.last + 1].sum() > 0.75 * late.sum():
        # Late all along, and much more so in an episode.
        first, past, chronic = high.first, high.last + 1, False
    if chronic and marked.mean() > SOLID:
        return np.ones(n, dtype=bool), False
    inside = marked[first:past]
    if past > first and inside.mean() >= SOLID and late[first:past].sum() >= 0.5 * late.sum():
        steps = np.zeros(n, dtype=bool)
        steps[first:past] = True
        return steps, False
    return marked, bool(marked.mean() < 0.5)


def _alike(line: Timeline, late: FloatArray, worst: int) -> IntArray:
    """The ranks that are late with the worst one, as much and as often."""
    size, share = late.mean(axis=1), (late > 0).mean(axis=1)
    node = line.topology.node
    home = (node == node[worst]) & (node[worst] >= 0)
    home[worst] = True
    low, high = (each * size[worst] for each in ALIKE_ELSEWHERE)
    near = (size > ALIKE * size[worst]) & (share > 0.5 * share[worst])
    near &= home | ((size > low) & (size < high))
    return np.flatnonzero(near)


def _worth_it(found: Sequence[Lateness], line: Timeline) -> list[Lateness]:
    """Without trifles; single late steps of many ranks are one lateness of the job."""
    single = [each.seconds for each in found if each.single]
    least = 0.5 * sum(single) if len(single) > 2 else 0.0
    return [
        each
        for each in found
        if each.seconds > (MIN_COST_OF_SINGLE if each.single else MIN_COST) * line.usual
        and (not each.single or each.seconds >= least)
    ]


def excess_by_phase(line: Timeline, ranks: IntArray, steps: BoolArray) -> dict[str, float]:
    """Mean excess of each phase on some ranks in their late steps, seconds; the rest is untimed."""
    chosen = np.ix_(ranks, np.flatnonzero(steps))
    parts = {
        name.removesuffix("_seconds"): max(float(nan_mean(values[chosen].ravel())), 0.0)
        for name, values in line.comparison.phase_excess.items()
        if np.isfinite(values[chosen]).any()
    }
    whole = float(np.nan_to_num(nan_mean(line.comparison.excess[chosen].ravel())))
    rest = whole - sum(parts.values())
    return parts | ({"untimed": rest} if rest > 0.1 * abs(whole) else {})


def late_in_transfer(line: Timeline) -> list[Lateness]:
    """Ranks whose own part of the transfer takes longer than that of the others, in most steps."""
    transfer = line.work.transfer
    timed = "communication_transfer_seconds" in line.replay.seconds and np.isfinite(transfer).any()
    if not timed or line.topology.n_ranks < 4:
        return []
    beyond = nan_median(transfer - nan_median(transfer)[None, :], axis=1)
    middle = float(nan_median(beyond))
    spread = robust_spread(beyond - middle)
    slow = np.nan_to_num(beyond) > max(LATE_TRANSFER * line.usual, LATE_TRANSFER_SPREADS * spread)
    if not slow.any() or slow.mean() > 0.5:
        return []
    ranks = np.flatnonzero(slow)
    size = float(beyond[ranks].mean())
    z = size / max(spread, 1e-9)
    return [Lateness("ranks", tuple(ranks.tolist()), line.everywhere(), size, z, {"transfer": size})]


def late_stages(line: Timeline, found: Sequence[Lateness]) -> list[Lateness]:
    """The pipeline stage that is slower than the next slowest one, in the steps without late ranks.

    Parameters
    ----------
    found : list of Lateness
        Of ranks. Where they are late in most steps, all steps count.
    """
    if line.topology.n_stages < 2:
        return []
    gain = zero_if_nan(line.comparison.gain_stage)
    free = ~np.any([each.steps for each in found], axis=0) if found else line.everywhere()
    usual = np.median(gain[:, free] if free.mean() >= MIN_FREE else gain, axis=1)
    stage = int(usual.argmax())
    if usual[stage] < STAGE_GAIN * line.usual:
        return []
    error = max(line.noise / np.sqrt(line.n_steps), 1e-9)
    ranks = np.flatnonzero(line.topology.stage == stage)
    seconds, z = float(gain[stage].mean()), float(usual[stage] / error)
    return [Lateness("stage", tuple(ranks.tolist()), line.everywhere(), seconds, z, STAGE_PHASES)]
