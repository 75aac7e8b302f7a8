"""A rank or node that becomes late and stays so, found on arrival in its own work.

The step time of a noisy job hides one slow rank, and timers of the others show its lateness as waiting. So
each rank's own work is compared with its peers at the same step, and the last steps with those before them.
What counts as a change follows from the job's own noise: the last steps must be several times later than any
steps of the reference were. A false sign costs one diagnosis; the diagnosis decides about an alarm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.features.late_episodes import capped
from rca.features.step_time_change import WARM_UP_STEPS, tried_onsets
from rca.robust import group_members, nan_mean, nan_quantile, peer_reference, zero_if_nan
from rca.window.times.own_work import own_work
from rca.window.times.phases import PhaseArrays

#: Last steps that are compared with those before them, least share of them that is late, and how many times
#: later they are than as many steps of the reference ever were. Rare lateness is seen after more steps.
LOOKS: tuple[tuple[int, float, float], ...] = ((8, 0.8, 4.0), (12, 0.7, 3.0), (20, 0.5, 3.0), (32, 0.25, 3.0))
#: Each part of the last steps has to be late: so many at most,
MAX_PARTS = 4
#: of so many steps at least.
MIN_PART_STEPS = 4
#: Least lateness that is a change, as a share of the usual step.
MIN_SHARE = 0.04
#: A step is late above this quantile of the reference.
LATE_QUANTILE = 0.9
#: Steps of the reference.
MIN_REFERENCE_STEPS = 24
MAX_REFERENCE_STEPS = 240
#: Steps between the reference and the last steps: a change may have begun in them.
GUARD_STEPS = 4
#: Distance of the onsets that are tried, steps.
ONSET_STRIDE = 12
#: Noise is at least this quantile of that of all ranks, or nodes: what happens to one may happen to another.
NOISE_QUANTILE = 0.8


@dataclass(frozen=True)
class LatenessChange:
    """Ranks became late and stayed so until the end of the window.

    Attributes
    ----------
    step : int
        First late step.
    ranks : tuple of int
        One rank, or the ranks of one node.
    seconds : float
        By how much later than before they are, seconds per step.
    """

    step: int
    ranks: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class UnitLateness:
    """Lateness of every rank and every node against their peers.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int
    excess : ndarray of shape (n_units, n_steps), seconds
        Own work above that of the stage's peers, of a node the mean of its ranks; 0 where it is unknown.
    ranks : tuple of tuple of int
        Of each unit.
    """

    steps: IntArray
    excess: FloatArray
    ranks: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, phases: PhaseArrays, stage: IntArray, nodes: Mapping[int, str]) -> UnitLateness:
        """Lateness of a job's units, all 0 where no own work is timed.

        Parameters
        ----------
        stage : ndarray of shape (n_ranks,), int
            Pipeline stage of each rank.
        nodes : mapping of int to str
            Node of each rank, where it is known.
        """
        own = own_work(phases, stage).own
        excess = own - peer_reference(own, stage)
        names = {name: number for number, name in enumerate(sorted(set(nodes.values())))}
        node = np.array([names.get(nodes.get(rank, ""), -1) for rank in range(own.shape[0])])
        together = [each for each in group_members(node) if 1 < each.size < own.shape[0]]
        rows = [excess, *(nan_mean(excess[each])[None, :] for each in together)]
        ranks = [(rank,) for rank in range(own.shape[0])] + [tuple(each.tolist()) for each in together]
        return cls(phases.steps, zero_if_nan(np.concatenate(rows)), tuple(ranks))

    def change(self, last_step: int, usual: float, max_steps: int) -> LatenessChange | None:
        """The change that the steps up to one show.

        Parameters
        ----------
        usual : float, seconds
            The usual step.
        max_steps : int
            Steps that are looked at.
        """
        if not usual > 0:
            return None
        end = int(np.searchsorted(self.steps, last_step, side="right"))
        first = max(end - max_steps, int(np.searchsorted(self.steps, WARM_UP_STEPS)))
        excess = capped(self.excess[:, first:end], usual)
        # Few units are late at all: the others are only needed for the noise.
        earlier = excess[:, : max(excess.shape[1] // 4, 1)]
        low = np.minimum(nan_quantile(excess, 0.5, axis=1), nan_quantile(earlier, 0.5, axis=1))
        n_ranks = sum(len(each) == 1 for each in self.ranks)
        # The mean of a node's ranks has less noise than each of them.
        kinds = (0, n_ranks), (n_ranks, len(self.ranks))
        for (length, share, ratio), (begin, past) in product(LOOKS, kinds):
            units = slice(begin, past)
            found = _change(excess[units], low[units], MIN_SHARE * usual, length, share, ratio)
            if found is not None:
                unit, onset, seconds = found
                return LatenessChange(int(self.steps[first + onset]), self.ranks[begin + unit], seconds)
        return None


def _change(
    excess: FloatArray, low: FloatArray, min_growth: float, length: int, share: float, ratio: float
) -> tuple[int, int, float] | None:
    """Unit, onset and growth of lateness that the last steps show; the unit with the clearest one.

    Parameters
    ----------
    excess : ndarray of shape (n_units, n_steps), seconds
    low : ndarray of shape (n_units,), seconds
        Excess that no reference of a unit is much below.
    min_growth : float, seconds
        Least growth of lateness.
    """
    n_steps = excess.shape[1]
    onsets = tried_onsets(n_steps - length, max(MIN_REFERENCE_STEPS, length) + GUARD_STEPS, ONSET_STRIDE)
    if not (onsets and len(excess)):
        return None
    # A few very late steps are in one or two of the parts only.
    parts = excess[:, -length:].reshape(len(excess), min(length // MIN_PART_STEPS, MAX_PARTS), -1)
    last = parts.mean(axis=2).min(axis=1)
    units = np.flatnonzero(last - low >= min_growth)
    if not units.size:
        return None
    for first in onsets:
        reference = excess[:, max(0, first - GUARD_STEPS - MAX_REFERENCE_STEPS) : first - GUARD_STEPS]
        centre = nan_quantile(reference, 0.5, axis=1)
        if not (last[units] - centre[units] >= min_growth).any():
            continue
        noise = np.maximum(_means(reference, length).max(axis=1) - centre, 0.0)
        noise = np.maximum(noise, np.quantile(noise, NOISE_QUANTILE))[units]
        above = excess[units, first:] > nan_quantile(reference[units], LATE_QUANTILE, axis=1)[:, None]
        grown = np.minimum(last[units], excess[units, first:].mean(axis=1)) - centre[units]
        late = np.minimum(above[:, -length:].mean(axis=1), above.mean(axis=1))
        found = (grown >= np.maximum(min_growth, ratio * noise)) & (late >= share)
        if found.any():
            clearest = int(np.argmax(np.where(found, grown / np.maximum(noise, min_growth), -np.inf)))
            unit, growth = int(units[clearest]), float(grown[clearest])
            return unit, _onset(excess[unit] - centre[unit], growth), growth
    return None


def _means(values: FloatArray, length: int) -> FloatArray:
    """Mean of every `length` consecutive columns, shape (n_units, n_steps - length + 1)."""
    total = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    means: FloatArray = (total[:, length:] - total[:, :-length]) / length
    return means


def _onset(lateness: FloatArray, growth: float) -> int:
    """The column from which on lateness is about `growth`, up to the end."""
    total = np.cumsum((lateness - growth / 2)[::-1])
    return lateness.size - 1 - int(np.argmax(total))
