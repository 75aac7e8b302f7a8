"""Isolate the smallest set of nodes that covers the suspects, where it is unclear which is at fault.

ByteRobust isolates fast instead of localising exactly. It reports 97 % effective training time at 9,600
GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

from rca.recovery.option import Gain, Option, Rejection, Weight, option
from rca.recovery.remedies import RESTART_RISK
from rca.recovery.situation import Situation, Suspect
from rca.telemetry.causes import STOP_CAUSES

#: Probability that the isolated nodes hold the fault, from which no further node is isolated.
COVERED = 0.95
#: Least probability of causes that a machine has, among all causes of the suspects.
MOSTLY_MACHINES = 0.5


class IsolateSuspects:
    """Takes every node that may be at fault out of the job at once; checks follow outside the job."""

    name = "isolate_suspects"
    weight: Weight = "heavy"

    def options(self, situation: Situation) -> list[Option | Rejection]:
        """One option: the smallest covering set; or the reason against it."""
        nodes, chance, saved = covering_nodes(situation.suspects, situation.lost)
        if not nodes:
            return [self._rejected("no suspect with a known node")]
        if len(nodes) == 1 and situation.decided:
            return [self._rejected("one node covers all suspects and its cause is named: drain that node")]
        if _on_machines(situation) < MOSTLY_MACHINES:
            return [self._rejected("the likely causes belong to the workload, not to machines")]
        stopped = situation.mode == "fail_stop"
        gain = Gain(None, None, "unknown") if stopped else Gain(saved, (0.0, saved), "attribution")
        found = option(
            self,
            gain,
            chance=chance,
            causes=[fault.cause for fault in situation.faults if set(fault.nodes) & set(nodes)],
            ranks=[
                rank for each in situation.suspects if set(each.nodes) <= set(nodes) for rank in each.ranks
            ],
            nodes=nodes,
            one_off=situation.site.restart_cost,
            risk=RESTART_RISK + "; healthy nodes may be among those taken out",
            instruction="cordon these nodes, restart without them, and test each outside the job",
            corrected=situation.site.corrections.get(self.name, 1.0),
        )
        return [found]

    def _rejected(self, reason: str) -> Rejection:
        return Rejection(action=self.name, reason=reason)


def covering_nodes(suspects: Sequence[Suspect], lost: float) -> tuple[list[str], float, float]:
    """The smallest set of nodes that holds the fault with probability `COVERED`.

    Suspects are taken as alternatives where their probabilities add up to at most 1, else as separate faults;
    then all that are likelier than not are covered.

    Parameters
    ----------
    suspects : sequence of Suspect
    lost : float, seconds per step

    Returns
    -------
    nodes : list of str
    chance : float
        Probability that the nodes hold the fault.
    saved : float, seconds per step
        The loss times that probability.
    """
    placed = sorted((each for each in suspects if each.nodes), key=lambda each: -each.probability)
    total = sum(each.probability for each in placed)
    nodes: set[str] = set()
    covered = 0.0
    for each in placed:
        separate = total > 1.0 and each.probability > 0.5
        if covered >= COVERED and not separate:
            break
        nodes |= set(each.nodes)
        covered += each.probability if total <= 1.0 else (1.0 - covered) * each.probability
    return sorted(nodes), min(covered, 1.0), lost * min(covered, 1.0)


def _on_machines(situation: Situation) -> float:
    """Probability of causes that a machine may have, over that of all causes."""
    total = sum(fault.probability for fault in situation.faults)
    machine = sum(
        fault.probability
        for fault in situation.faults
        if fault.owner == "infrastructure" or fault.cause in STOP_CAUSES
    )
    return machine / total if total > 0 else 0.0
