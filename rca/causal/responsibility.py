"""How much of a component's excess each cause is responsible for, phase by phase."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from rca.arrays import FloatArray
from rca.causal.graph import PHASES
from rca.causal.mechanisms import Mechanisms
from rca.telemetry.causes import CAUSES

#: Causes below this belief are not carried further.
MIN_BELIEF = 0.03
#: Odds that a cause gains when its measured resources account for a phase's whole excess.
SUPPORT_ODDS = 4.0
#: How far the likelier explanation of the same time is preferred: 1 shares by belief, infinity picks one.
DECISIVENESS = 6.0
#: Where trainers count a phase that they do not time: inputs are copied where they are loaded, or first used,
#: and ranks meet within a pass or before they update.
COUNTED_WITHIN = {
    "host_to_device": ("data_loading", "forward"),
    "transfer": ("forward", "backward", "optimizer"),
}
#: Pseudo-phase for time that no phase column covers.
UNMEASURED = "unmeasured"


def responsibilities(
    beliefs: Mapping[str, float],
    mechanisms: Mechanisms,
    scores: FloatArray,
    excess: Mapping[str, float],
    measured: Collection[str] = (),
) -> dict[str, dict[str, float]]:
    """Weights of the causes in every phase; what they leave to 1 stays unexplained.

    Parameters
    ----------
    beliefs : mapping of cause to float
        The classifier's probabilities: a prior, gated by the graph.
    mechanisms : Mechanisms
    scores : ndarray of shape (n_resources,), units
        The component's resource scores; NaN = not measured.
    excess : mapping of phase to float, relative
        The component's mean excess per phase (and `UNMEASURED`).
    measured : collection of str
        Phases, ``transfer`` among them, that were measured on the component's ranks.

    Returns
    -------
    dict of cause to dict of phase to float
        A cause's weight in a phase is its belief, raised where the fitted mechanism of its measured
        resources accounts for the excess. Belief in causes without an arrow to the phase explains nothing
        there, and time that no phase covers is not put on a cause whose own phases were all measured.
        A phase that was not measured may be counted within another one (`COUNTED_WITHIN`).
    """
    effects = mechanisms.effects(scores)
    kept = {cause: belief for cause, belief in beliefs.items() if belief >= MIN_BELIEF}
    weights: dict[str, dict[str, float]] = {cause: {} for cause in kept}
    for phase, amount in excess.items():
        raised = {
            cause: belief * (1 + SUPPORT_ODDS * _support(cause, phase, amount, effects, mechanisms, measured))
            for cause, belief in kept.items()
        }
        total = sum(raised.values()) + max(0.0, 1.0 - sum(kept.values()))
        for cause, weight in raised.items():
            if _may_lengthen(cause, phase, measured):
                weights[cause][phase] = weight / total
    return weights


def decided(weights: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Shares of every phase's excess that the causes are charged with.

    Look-alikes explain the *same* time, in different worlds: in each of them one pays all of it and the
    others nothing. Sharing in proportion to belief would give a cost that is right in none of them, so
    shares lean towards the likelier world; equal beliefs still share equally.

    Parameters
    ----------
    weights : mapping of cause to mapping of phase to float
        From `responsibilities`.

    Returns
    -------
    dict of cause to dict of phase to float
        At most 1 per phase; the rest stays unexplained.
    """
    charged: dict[str, dict[str, float]] = {cause: {} for cause in weights}
    for phase in sorted({phase for by_phase in weights.values() for phase in by_phase}):
        held = {cause: by_phase[phase] for cause, by_phase in weights.items() if phase in by_phase}
        claimed = sum(held.values())
        if claimed <= 0:
            continue
        sharp = {cause: (weight / claimed) ** DECISIVENESS for cause, weight in held.items()}
        explained = _sharpened(min(claimed, 1.0))
        for cause, weight in sharp.items():
            charged[cause][phase] = explained * weight / sum(sharp.values())
    return charged


def _sharpened(chance: float) -> float:
    yes, no = float(chance**DECISIVENESS), float((1.0 - chance) ** DECISIVENESS)
    return yes / (yes + no)


def _may_lengthen(cause: str, phase: str, measured: Collection[str]) -> bool:
    spec = CAUSES[cause]
    if phase != UNMEASURED:
        return phase in spec.phases or bool(_within(cause, phase, measured))
    # A busy host stretches whatever lies between the phases; a loader stretches loading and nothing else.
    return spec.type == "host" or not set(spec.phases) <= set(measured)


def _within(cause: str, phase: str, measured: Collection[str]) -> list[str]:
    """The cause's own phases that nobody timed, and that a trainer may have counted within this one."""
    return [
        own for own in CAUSES[cause].phases if own not in measured and phase in COUNTED_WITHIN.get(own, ())
    ]


def _support(
    cause: str,
    phase: str,
    amount: float,
    effects: FloatArray,
    mechanisms: Mechanisms,
    measured: Collection[str],
) -> float:
    """Share of the phase's excess that the cause's measured resources account for, 0 to 1."""
    if amount <= 0:
        return 0.0
    columns = [mechanisms.resources.index(name) for name in CAUSES[cause].resources]
    # What lies in no phase is lengthened at most as the cause's own work is.
    own = [name for name in CAUSES[cause].phases if name != "transfer"]
    lengthened = own if phase == UNMEASURED else [phase, *_within(cause, phase, measured)]
    rows = [PHASES.index(name) for name in lengthened]
    accounted = float(np.nansum(effects[np.ix_(rows, columns)], axis=1).max()) if columns and rows else 0.0
    return min(accounted / amount, 1.0)
