"""The numbers of a window's latenesses, from which the alarm is learned.

Larger numbers never lower the probability of a fault: the costs, sizes and evidence of the latenesses are
monotone in the learned model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from rca.arrays import FloatArray
from rca.diagnosis.explanations import SILENT, Explanation, explanations
from rca.diagnosis.interval_evidence import WindowSignals
from rca.diagnosis.lateness import Lateness
from rca.diagnosis.loud_places import loud_places
from rca.diagnosis.shared_lateness import latenesses
from rca.diagnosis.timeline import Timeline
from rca.features import FeatureSet
from rca.whatif.phases.phase_replay import PhaseReplay
from rca.window.causes import UNKNOWN
from rca.window.window import Window

#: Kinds of lateness with numbers of their own.
_GROUPS = {
    "ranks": ("ranks",),
    "stage": ("stage",),
    "place": ("place",),
    "rotating": ("rotating",),
    "transfer": ("transfer",),
    "job": ("job",),
    "pace": ("pace",),
    "lost": ("between", "untimed"),
    "share": ("share",),
    "spikes": ("spikes",),
    "bound": ("bound",),
}
_OF_A_GROUP = ("cost", "size", "evidence")
_OF_THE_JOB = ("planned", "more_input", "n_ranks", "n_steps", "after_earlier", "localised")
#: Names of the numbers, in order, and those that only raise the probability.
ALARM_NUMBERS: tuple[str, ...] = (
    *(f"{group}_{number}" for group, number in product(_GROUPS, _OF_A_GROUP)),
    *_OF_THE_JOB,
)
RAISING: frozenset[str] = frozenset(f"{group}_{number}" for group, number in product(_GROUPS, _OF_A_GROUP))
#: Size beyond which a lateness is as certain, in standard errors.
MAX_SIZE = 1e3


@dataclass(frozen=True)
class Explained:
    """A lateness and its explanations, the best first."""

    late: Lateness
    explanations: tuple[Explanation, ...]

    @property
    def evidence(self) -> float:
        """Nats that the best known cause has from signals or the input."""
        known = (each.evidence for each in self.explanations if each.cause != UNKNOWN)
        return max(max(known, default=0.0), 0.0)

    @property
    def may_be_a_fault(self) -> bool:
        """Whether it is no planned work, and no more work of the job as far as the window shows."""
        if self.late.may_be_work and self.evidence < SILENT:
            return False
        return not (self.late.planned or self.late.more_input)


def explained(
    window: Window, features: FeatureSet, replay: PhaseReplay, since: int | None = None
) -> tuple[WindowSignals, list[Explained]]:
    """The signals along a window's timeline, and every lateness with its explanations.

    Parameters
    ----------
    window : Window
        With its earlier window, if `since` is given.
    since : int, optional
        Number of the first step after an earlier window.
    """
    line = Timeline.of(features, replay, since)
    signals = WindowSignals.of(window, features.series, line)
    found = latenesses(line)
    found += loud_places(line, signals, found)
    rows = [Explained(late, tuple(explanations(line, signals, late))) for late in found]
    return signals, [each for each in rows if each.explanations]


def alarm_numbers(line: Timeline, found: Sequence[Explained]) -> FloatArray:
    """The numbers of a window, shape (n_alarm_numbers,), in the order of `ALARM_NUMBERS`."""
    numbers: list[float] = []
    for kinds in _GROUPS.values():
        held = [each for each in found if each.late.kind in kinds and each.may_be_a_fault]
        numbers += [
            max((line.relative(each.late.seconds) for each in held), default=0.0),
            float(np.log1p(max((min(max(each.late.z, 0.0), MAX_SIZE) for each in held), default=0.0))),
            max((each.evidence for each in held), default=0.0),
        ]
    planned = [line.relative(each.late.seconds) for each in found if each.late.planned]
    loaded = [line.relative(each.late.seconds) for each in found if each.late.more_input]
    numbers += [
        max(planned, default=0.0),
        max(loaded, default=0.0),
        float(np.log(line.topology.n_ranks)),
        float(np.log(max(line.n_steps, 1))),
        float(line.since is not None),
        float(line.localises),
    ]
    return np.array(numbers)
