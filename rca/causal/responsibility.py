"""Share of each cause in a component's excess, phase by phase."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rca.window.causes import CAUSES

#: Causes below this belief get no share.
MIN_BELIEF = 0.03
#: Preference for the likelier explanation of the same time: 1 shares by belief, infinity picks one cause.
DECISIVENESS = 6.0
#: Phase -> the phases that contain it if a trainer does not time it. Inputs are copied where they are loaded
#: or first used; ranks communicate within a pass or before the update.
COUNTED_WITHIN = {
    "host_to_device": ("data_loading", "forward"),
    "transfer": ("forward", "backward", "optimizer"),
}
#: Pseudo-phase for time that no phase column covers.
UNMEASURED = "unmeasured"


def responsibilities(
    beliefs: Mapping[str, float],
    excess: Mapping[str, float],
    measured: Collection[str] = (),
) -> dict[str, dict[str, float]]:
    """Weights of the causes in every phase; the rest to 1 is unexplained.

    Parameters
    ----------
    beliefs : mapping of cause to float
        Probabilities of a suspect's causes.
    excess : mapping of phase to float, relative
        The component's mean excess per phase (and `UNMEASURED`).
    measured : collection of str
        Phases, ``transfer`` among them, that were measured on the component's ranks.

    Returns
    -------
    dict of cause to dict of phase to float
        A cause's weight in a phase is its belief. A cause without an arrow to the phase has no weight there.
        Time in no phase has no weight for a cause if all its phases were measured. A phase that was not
        measured may be part of another one (`COUNTED_WITHIN`).
    """
    kept = {cause: belief for cause, belief in beliefs.items() if belief >= MIN_BELIEF}
    total = max(sum(kept.values()), 1.0)
    return {
        cause: {phase: belief / total for phase in excess if _may_lengthen(cause, phase, measured)}
        for cause, belief in kept.items()
    }


def decided(weights: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Share of every phase's excess that each cause is charged with.

    Similar causes explain the *same* time: one of them costs all of it, and the others nothing. Shares in
    proportion to belief would be wrong in every case. The likelier cause therefore gets a larger share than
    its belief; equal beliefs share equally.

    Parameters
    ----------
    weights : mapping of cause to mapping of phase to float
        From `responsibilities`.

    Returns
    -------
    dict of cause to dict of phase to float
        At most 1 per phase; the rest is unexplained.
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
    # A busy host lengthens all time between the phases; a loader lengthens loading only.
    return spec.type == "host" or not set(spec.phases) <= set(measured)


def _within(cause: str, phase: str, measured: Collection[str]) -> list[str]:
    """The cause's phases that were not measured and may be part of this one."""
    return [
        own for own in CAUSES[cause].phases if own not in measured and phase in COUNTED_WITHIN.get(own, ())
    ]
