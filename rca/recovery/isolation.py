"""Isolate the smallest set of nodes that covers the suspects, where it is unclear which is at fault.

ByteRobust isolates fast instead of localising exactly. It reports 97 % effective training time at 9,600
GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

from rca.probability import probability
from rca.recovery.option import UNKNOWN_GAIN, Gain, Option, SingleAction, Weight, option
from rca.recovery.remedies import RESTART_RISK
from rca.recovery.situation import Situation, SlowRanks
from rca.window.causes import STOP_CAUSES

#: Probability that the isolated nodes hold the fault, from which no further node is isolated.
COVERED = 0.95
#: Least probability of the set, and of each suspect in it.
MIN_CHANCE, MIN_SUSPECT = 0.5, 0.1


class IsolateSuspects(SingleAction):
    """Takes every node that may be at fault out of the job at once; checks follow outside the job."""

    name = "isolate_suspects"
    weight: Weight = "heavy"

    def _judged(self, situation: Situation) -> Option | str:
        if situation.mode == "healthy":
            return "the job is not slow"
        if situation.decided:
            return "it is clear which ranks are at fault"
        suspects = [each for each in situation.suspects if _may_be_a_machine(each, situation)]
        covered, chance = covering_suspects(suspects)
        nodes = sorted({node for each in covered for node in each.nodes})
        if len(nodes) < 2:
            return "fewer than two nodes with signals of a machine fault are suspected"
        if chance < MIN_CHANCE:
            return f"the likeliest nodes hold the fault with probability {probability(chance)} only"
        saved = situation.lost
        known = situation.mode == "fail_slow" and saved > 0
        return option(
            self,
            Gain(saved, (0.0, saved), "attribution") if known else UNKNOWN_GAIN,
            chance=chance,
            causes=[fault.cause for fault in situation.faults if set(fault.nodes) & set(nodes)],
            ranks=[rank for each in covered for rank in each.ranks],
            nodes=nodes,
            one_off=situation.site.restart_cost,
            takes_out=True,
            risk=RESTART_RISK + "; healthy nodes are among those taken out",
            instruction="cordon these nodes, restart without them, and test each outside the job",
        )


def covering_suspects(suspects: Sequence[SlowRanks]) -> tuple[list[SlowRanks], float]:
    """The fewest suspects that hold the fault with probability `COVERED`, and that probability.

    Suspects are alternatives: one of them is at fault. Unlikely ones are not isolated.
    """
    total = max(sum(each.probability for each in suspects), 1.0)
    likely = [each for each in suspects if each.nodes and each.probability >= MIN_SUSPECT]
    kept: list[SlowRanks] = []
    chance = 0.0
    for each in sorted(likely, key=lambda one: -one.probability):
        if chance >= COVERED:
            break
        kept.append(each)
        chance += each.probability / total
    return kept, min(chance, 1.0)


def _may_be_a_machine(suspect: SlowRanks, situation: Situation) -> bool:
    """Whether a cause that a machine may have is plausible for these ranks, with signals where it is slow."""
    own = [fault for fault in situation.faults if set(fault.ranks) & set(suspect.ranks)]
    return any(
        fault.cause in STOP_CAUSES or (fault.owner == "infrastructure" and fault.evident) for fault in own
    )
