"""Hidden faults: classify the job again with the lateness of the first suspects removed.

Those that act while it rests are found by `rca.diagnosis.segment_rediagnosis`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Classification, Suspect, as_component_cause, named_ranks
from rca.classify.counterfactual_features import Counterfactual
from rca.classify.merge_components import merge_suspects
from rca.classify.residual_suspects import is_residual_suspect
from rca.diagnosis.bundle import Bundle
from rca.diagnosis.corroboration import with_machine_evidence
from rca.diagnosis.step_time_fallback import timers_can_price
from rca.features import FeatureSet
from rca.telemetry.job import Topology
from rca.telemetry.window import Window

#: Least share of the shorter stretch's steps in which both are slow.
SHARED = 0.5


def with_hidden_faults(
    found: Classification,
    window: Window,
    features: FeatureSet,
    bundle: Bundle,
    priors: Mapping[str, float] | None,
) -> Classification:
    """The answer, with what is said for sure of the same job without the lateness of its suspects.

    The counterfactual job is not asked with what history says of nodes: it would move what is sure.

    Parameters
    ----------
    found : Classification
        Of a slow job, its suspects as heard.
    window : Window
    features : FeatureSet
        Of the window.
    bundle : Bundle
    priors : mapping of cause to float, optional
        As in `Classifier.classify`.
    """
    if not _can_be_mended(found, features):
        return found
    removed = Counterfactual.of(features, named_ranks(found.suspects))
    if not removed.is_still_slow():
        return found
    counterfactual = removed.features_without_lateness(window)
    told = bundle.classifier.classify(counterfactual, priors)
    if told.mode != "fail_slow" or not _at_the_same_time(features, counterfactual):
        return found
    busy = BusyEvidence.from_features(counterfactual, bundle.mechanisms)
    again = [with_machine_evidence(suspect, counterfactual, busy) for suspect in told.suspects]
    first = [as_component_cause(each) for each in found.suspects]
    new = [
        each
        for each in again
        if is_residual_suspect(
            as_component_cause(each), next(iter(each.causes.values())), first, features, counterfactual
        )
    ]
    return (
        replace(found, suspects=add_hidden_suspects(found.suspects, new, features.topology)) if new else found
    )


def _can_be_mended(found: Classification, features: FeatureSet) -> bool:
    """Whether timers tell how late some ranks are, and others are there to compare."""
    if not found.suspects or features.comparison.slowed is not None:
        return False
    some = len(named_ranks(found.suspects)) < features.topology.n_ranks
    return some and timers_can_price(found.suspects, features)


def _at_the_same_time(features: FeatureSet, counterfactual: FeatureSet) -> bool:
    """Whether both jobs are mostly slow in the same steps, by the shorter of the two segments.

    What acts at another time is found by the second look, and priced and heard in its own steps there.
    """
    n_steps = features.work.steps.size
    slow, left = (each.comparison.segment.mask(n_steps) for each in (features, counterfactual))
    return int((slow & left).sum()) >= SHARED * min(int(slow.sum()), int(left.sum()))


def add_hidden_suspects(
    first: Sequence[Suspect], new: Sequence[Suspect], topology: Topology
) -> list[Suspect]:
    """First and new suspects, the job as a whole last; one cause in one place is one suspect.

    What is believed of it is what was believed of the one that was found first.
    """
    told = list(first)
    for each in new:
        for place, other in enumerate(told):
            both = merge_suspects([as_component_cause(other), as_component_cause(each)], topology)
            if len(both) == 1:
                told[place] = replace(other, component=both[0])
                break
        else:
            told.append(each)
    return told
