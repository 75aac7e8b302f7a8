"""Stage 3 of a diagnosis: which causes explain a lateness, and how well.

The score of a cause is a sum of nats against an open cause: its prior, whether its phases are the late ones,
and what the signals that decide on it show. A signal that was measured and is normal counts against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.causal.graph import PHASES as TIMED_PHASES
from rca.diagnosis.cause_table import (
    CAUSE_TABLE,
    EXPLAINED_BY,
    FORMS,
    OF_DEVICE,
    OF_PHASE,
    CauseRow,
    deciding,
    showing,
    supporting,
)
from rca.diagnosis.findings import REMARKABLE, strength
from rca.diagnosis.interval_evidence import NAMES, IntervalEvidence, WindowSignals
from rca.diagnosis.lateness import Lateness
from rca.diagnosis.timeline import Timeline
from rca.features.input_load import LOAD_COUNTS
from rca.robust import nan_median, zero_if_nan
from rca.window.causes import UNKNOWN

#: Phases of a lateness.
PHASES = (*TIMED_PHASES, "untimed")
#: Share of an open cause's seconds in each phase, and of another cause's in phases that it does not lengthen.
ANYWHERE = dict.fromkeys(PHASES, 0.1) | {"untimed": 0.2}
ELSEWHERE = 0.02
#: Weight of the phases, nats.
PHASE_WEIGHT = 1.3
#: Units below which a signal is normal, and what normal signals that decide cost a cause, in nats.
NORMAL, MISSED = 0.4, -2.5
#: Weights of the further deciding signals, and of supporting ones with and without a deciding one.
FURTHER, SUPPORT, SUPPORT_ALONE = 0.25, 0.3, 0.6
#: Nats of a supporting signal that outweigh normal signals that decide.
LOUD_SUPPORT = 3.0
#: Nats below which no signal speaks, and what such a cause of the whole job loses: machines fail one by one.
SILENT, RARE = 1.0, -1.2
#: Nats that a cause loses without a finding of its own: a signal, the input, or a phase of its own.
UNSHOWN = -2.5
#: Nats of a remarkable deviation, from which it is a finding.
FINDING = strength(REMARKABLE)
#: Share of the lateness in that phase.
IN_OWN_PHASE = 0.5
#: Units from which a place stands out, and share of the loudest that belongs to it.
STANDS_OUT, AS_LOUD = 0.7, 0.75
#: Correlations of own work with the counted input that explain it, deny it, and exclude a machine's fault.
INPUT_EXPLAINS, INPUT_DENIES, INPUT_EXCLUDES = 0.5, 0.2, 0.8


@dataclass(frozen=True)
class Explanation:
    """One cause on some ranks as the explanation of a lateness.

    Attributes
    ----------
    score : float, nats
        Against an open cause.
    evidence : float, nats
        What deciding signals and the input show, less what normal ones cost.
    """

    cause: str
    ranks: tuple[int, ...]
    score: float
    evidence: float


def explanations(line: Timeline, signals: WindowSignals, late: Lateness) -> list[Explanation]:
    """Every cause of such a lateness at its best place, the best first."""
    evidence = signals.over(late.steps)
    found = []
    for cause, row in CAUSE_TABLE.items():
        if FORMS[late.kind] in row.forms or (late.kind == "pace" and "ranks" in row.forms):
            places = [late.ranks] if not late.of_all else places_of(cause, row, evidence, line)
            scored = [_explained(line, late, cause, ranks, evidence) for ranks in places]
            found.append(max(scored, key=lambda each: each.score))
    return sorted(found, key=lambda each: -each.score)


def chances(found: Sequence[Explanation]) -> dict[str, float]:
    """Probability of each cause of one lateness."""
    scores = np.array([each.score for each in found])
    weights = np.exp(scores - scores.max())
    return {each.cause: float(p) for each, p in zip(found, weights / weights.sum(), strict=True)}


def places_of(cause: str, row: CauseRow, evidence: IntervalEvidence, line: Timeline) -> list[tuple[int, ...]]:
    """The ranks or the node that stand out in the signals that decide, and then the whole job."""
    places = [line.everybody]
    decide = showing(cause)
    if not decide or "ranks" not in row.forms or line.topology.n_ranks == 1:
        return places
    names = (*decide, *(name for name in row.support if name == "stopped"))
    loud = evidence.standing_out([NAMES.index(name) for name in names])
    if loud.max() < STANDS_OUT:
        return places
    ranks = np.flatnonzero(loud >= max(AS_LOUD * loud.max(), STANDS_OUT))
    return [tuple(ranks.tolist()), *places] if 2 * ranks.size <= line.topology.n_ranks else places


def _explained(
    line: Timeline, late: Lateness, cause: str, ranks: tuple[int, ...], evidence: IntervalEvidence
) -> Explanation:
    row = CAUSE_TABLE[cause]
    if cause == UNKNOWN:
        return Explanation(cause, ranks, row.prior, 0.0)
    units, measured = evidence.of(ranks)
    shown = _shown(cause, units, measured)
    missed = MISSED if _is_normal(cause, units, measured) else 0.0
    others, by_input = _distinguishing(line, late, cause, ranks, evidence)
    score = row.prior + _fit(line, cause, late.phases) + shown + missed + others
    if not (shown >= FINDING or by_input > 0 or _shown_by_timing(cause, late, units, measured)):
        score += UNSHOWN
    alone = late.of_all and "transfer" not in late.phases and line.topology.n_ranks > 1
    if alone and deciding(cause) and shown < SILENT:
        score += RARE
    return Explanation(cause, ranks, float(score), float(shown + missed + by_input))


def _fit(line: Timeline, cause: str, late: Mapping[str, float]) -> float:
    """Nats by which the late phases speak for a cause."""
    total = sum(seconds for seconds in late.values() if seconds > 0)
    if not total > 0:
        return 0.0
    row = CAUSE_TABLE[cause]
    where = {phase: row.phases.get(phase, ELSEWHERE) for phase in PHASES}
    if cause in OF_DEVICE:
        where |= {phase.removesuffix("_seconds"): 0.94 * share for phase, share in line.device_shares.items()}
    rows = ((phase, seconds / total) for phase, seconds in late.items() if seconds > 0)
    return PHASE_WEIGHT * sum(
        share * float(np.log(max(where[phase], 1e-3) / ANYWHERE[phase])) for phase, share in rows
    )


def _shown(cause: str, units: FloatArray, measured: BoolArray) -> float:
    """Nats that the signals show of a cause."""
    other, left = EXPLAINED_BY.get(cause, ("", 1.0))
    weight = left if other and units[NAMES.index(other)] >= NORMAL else 1.0
    said = sorted(
        (
            weight * strength(float(units[NAMES.index(name)]))
            for name in showing(cause)
            if measured[NAMES.index(name)]
        ),
        reverse=True,
    )
    support = max(
        (strength(float(units[i])) for i in _columns(supporting(cause)) if measured[i]), default=0.0
    )
    if _is_normal(cause, units, measured):
        support = 0.0
    beside = (SUPPORT if said else SUPPORT_ALONE) * support
    return (said[0] + FURTHER * sum(said[1:]) if said else 0.0) + beside


def _shown_by_timing(cause: str, late: Lateness, units: FloatArray, measured: BoolArray) -> bool:
    """Whether the late phases, or the form of the lateness, leave no other cause of the catalogue."""
    if cause == "stage_imbalance":
        return late.kind == "stage"
    if cause == "communication_misconfiguration":
        # Ports that were measured and are normal leave the software.
        ports = [i for i in _columns(("nic", "tcp")) if measured[i]]
        return "transfer" in late.phases and bool(ports) and all(units[i] < NORMAL for i in ports)
    phase = CAUSE_TABLE[cause].own
    if phase and OF_PHASE[phase] != cause and measured[_columns(deciding(cause))].any():
        return False
    total = sum(seconds for seconds in late.phases.values() if seconds > 0)
    return total > 0 and late.phases.get(phase, 0.0) >= IN_OWN_PHASE * total


def _is_normal(cause: str, units: FloatArray, measured: BoolArray) -> bool:
    """Whether the signals that decide were measured and are normal, without a loud supporting one."""
    decide = [i for i in _columns(deciding(cause)) if measured[i]]
    support = [strength(float(units[i])) for i in _columns(supporting(cause)) if measured[i]]
    return (
        bool(decide)
        and all(units[i] < NORMAL for i in decide)
        and not any(each > LOUD_SUPPORT for each in support)
    )


def _columns(names: Sequence[str]) -> list[int]:
    return [NAMES.index(name) for name in names]


def _distinguishing(
    line: Timeline, late: Lateness, cause: str, ranks: tuple[int, ...], evidence: IntervalEvidence
) -> tuple[float, float]:
    """Nats that distinguish causes of the same phases, and the part of them that is evidence."""
    if cause == "sequence_length_imbalance":
        return _of_input(line)
    if cause in {"nic_degradation", "network_congestion"}:
        return _of_network(line, cause, ranks, evidence), 0.0
    if cause in OF_DEVICE or cause == "cpu_contention":
        by_input = input_explains(line)
        excluded = by_input is not None and by_input > INPUT_EXCLUDES
        return (-3.0 if excluded and late.kind in {"ranks", "rotating"} else 0.0), 0.0
    if cause in {"nvlink_degradation", "communication_misconfiguration"}:
        nodes = {int(line.topology.node[rank]) for rank in late.ranks}
        apart = 2 * len(late.ranks) <= line.topology.n_ranks and len(nodes) > 1
        return (1.5 if cause == "communication_misconfiguration" else -1.5) * apart, 0.0
    return 0.0, 0.0


def _of_input(line: Timeline) -> tuple[float, float]:
    """Whether unequal input explains it, by its counts."""
    by_input = input_explains(line)
    if by_input is not None:
        if by_input > INPUT_EXPLAINS:
            return 8.0, 4.0
        return (0.0 if by_input > INPUT_DENIES else -4.0), 0.0
    return -2.0, 0.0


def _of_network(line: Timeline, cause: str, ranks: tuple[int, ...], evidence: IntervalEvidence) -> float:
    """One node's counters stand out: its port. Those of many nodes grow: the fabric."""
    columns = _columns(("nic", "tcp"))
    node = line.topology.node
    nodes = [np.flatnonzero(node == each) for each in np.unique(node[node >= 0])]
    if len(nodes) < 2:
        return 0.0
    table = evidence.past if evidence.has_past else evidence.nominal
    grown = np.array([zero_if_nan(table[rows][:, columns]).mean(axis=0).max() for rows in nodes])
    apart = np.array([zero_if_nan(evidence.peers[rows][:, columns]).mean(axis=0).max() for rows in nodes])
    fabric = float(zero_if_nan(table[:, NAMES.index("fabric")]).mean())
    one = apart.max() > STANDS_OUT and apart.max() > 1.6 * np.sort(apart)[-2]
    if cause == "network_congestion":
        wide = (grown > 0.8).mean() > 0.5 and not one
        return (1.5 if wide else -1.5 if one else 0.0) + 1.5 * (fabric > 1)
    whole = 2 * len(ranks) > line.topology.n_ranks
    return 1.0 if one and not whole else -1.5 if whole else 0.0


def input_explains(line: Timeline) -> float | None:
    """Largest correlation of own work with a count of the input; None if no input is counted."""
    counted = [line.work.load[name] for name in LOAD_COUNTS if name in line.work.load]
    if not counted:
        return None
    own, best = zero_if_nan(line.comparison.excess), 0.0
    for load in counted:
        usual = nan_median(load)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = load / np.where(usual > 0, usual, np.nan) - 1.0
        known = np.isfinite(relative)
        if known.sum() >= 8 and np.std(relative[known]) >= 1e-3 and np.std(own[known]) > 0:
            best = max(best, float(np.corrcoef(relative[known], own[known])[0, 1]))
    return best
