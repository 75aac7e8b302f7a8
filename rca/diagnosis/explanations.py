"""Explanations of a decision: the models' largest exact contributions, in the user's units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rca.arrays import FloatArray
from rca.classify.classifier import HEADS, Classification, Classifier, Suspect
from rca.classify.head import Head
from rca.diagnosis.feature_units import read_feature, subject, subject_of_signal, table_of
from rca.diagnosis.result import Cause, Contribution, Preference
from rca.features import RANK_FEATURES, FeatureSet
from rca.features.groups import feature_groups
from rca.window.causes import CAUSES

#: Observations shown per decision.
MAX_SHOWN = 4
#: Smaller contributions are not shown, in log-odds: 0.2 changes a probability of 0.50 to 0.55.
MIN_LOG_ODDS = 0.2
#: Most stragglers that are explained, as many as a headline names; each takes 1 ms.
MAX_EXPLAINED = 3
#: From this probability on the difference between another cause and the named one is explained.
MIN_RIVAL_PROBABILITY = 0.05
#: Most ranks of a component that are compared to find a typical one; 0.5 ms for all.
MAX_COMPARED = 8
#: Size, length and coverage are context of a decision, not observations of a fault.
_SCENE = frozenset({"log2_ranks", "log2_nodes", "pipeline_stages"})
_SCENE_GROUP = "coverage"


def mode_evidence(
    classification: Classification, classifier: Classifier, features: FeatureSet, causes: Sequence[Cause]
) -> list[Contribution]:
    """Why this failure mode rather than the most probable other one.

    Parameters
    ----------
    causes : sequence of Cause
        The subjects of their evidence are not repeated.
    """
    chances = classification.probability
    other = max((mode for mode in chances if mode != classification.mode), key=lambda mode: chances[mode])
    moved = classifier.heads["mode"].contributions(features.window[None, :], classification.mode, other)[0]
    return _largest("mode", moved, None, classifier, features, _subjects(causes))


def suspect_evidence(
    classification: Classification, classifier: Classifier, features: FeatureSet, causes: Sequence[Cause]
) -> list[list[Contribution]]:
    """Why each suspect is one, in the order of the suspects; empty beyond the first `MAX_EXPLAINED`."""
    slow = classification.mode == "fail_slow"
    found = []
    for position, suspect in enumerate(classification.suspects):
        ranks = set(suspect.component.ranks)
        known = _subjects(cause for cause in causes if ranks & set(cause.ranks))
        shown = position < MAX_EXPLAINED
        found.append(
            _of_suspect(suspect, classification, classifier, features, known, slow=slow) if shown else []
        )
    return found


def _of_suspect(
    suspect: Suspect,
    classification: Classification,
    classifier: Classifier,
    features: FeatureSet,
    known: set[str],
    *,
    slow: bool,
) -> list[Contribution]:
    nodes = features.topology.nodes_of(suspect.component.ranks)
    # Several nodes behind one switch were first suspected as the whole job.
    if slow and (suspect.component.scope == "job" or (suspect.component.scope == "node" and len(nodes) > 1)):
        moved = classifier.heads["scope"].contributions(features.window[None, :], "job", "some")[0]
        return _largest("scope", moved, None, classifier, features, known)
    head = "straggler" if slow else "stopper"
    rank = _most_suspected(suspect, classification)
    moved = classifier.heads[head].contributions(features.rank[[rank]], "yes", "no")[0]
    return _largest(head, moved, rank, classifier, features, known)


def preference(
    suspect: Suspect,
    named: str,
    classification: Classification,
    classifier: Classifier,
    features: FeatureSet,
) -> Preference | None:
    """Why the models prefer the named cause to the likeliest other one.

    The type head explains causes of different types, the cause head others. Of several ranks the one nearest
    to their mean log-odds is explained.

    Parameters
    ----------
    named : str
        Cause that the answer lists first on its ranks.

    Returns
    -------
    Preference or None
        None if no other cause is likely, or if one of the two is no class of the models.
    """
    others = [cause for cause in suspect.causes if cause != named]
    other = max(others, key=lambda cause: suspect.causes[cause], default=named)
    if other == named or suspect.causes[other] < MIN_RIVAL_PROBABILITY:
        return None
    slow = classification.mode == "fail_slow"
    head, answered, instead = _head_between(named, other) if slow else ("stop_cause", named, other)
    if not {answered, instead} <= set(classifier.heads[head].classes):
        return None
    model = classifier.heads[head]
    ranks = _of_its_own(suspect, classification)
    rank = _typical(ranks, model, answered, instead, features) if slow else None
    row = (features.window if rank is None else features.rank[rank])[None, :]
    moved = model.contributions(row, answered, instead)[0]
    evidence = _largest(head, moved, rank, classifier, features, set())
    if not evidence:
        return None
    odds = float(_log_odds(model, answered, instead, row)[0])
    return Preference(cause=named, rather_than=other, evidence=evidence, log_odds=odds)


def _head_between(named: str, other: str) -> tuple[str, str, str]:
    """Head that separates two slow causes, and its two classes."""
    if named in CAUSES and other in CAUSES and CAUSES[named].type != CAUSES[other].type:
        return "type", str(CAUSES[named].type), str(CAUSES[other].type)
    return "cause", named, other


def _of_its_own(suspect: Suspect, classification: Classification) -> list[int]:
    """Some of its ranks, evenly spread, without those that are a suspect of their own."""
    narrower = {
        rank
        for other in classification.suspects
        if set(other.component.ranks) < set(suspect.component.ranks)
        for rank in other.component.ranks
    }
    ranks = [rank for rank in suspect.component.ranks if rank not in narrower] or list(
        suspect.component.ranks
    )
    places = np.unique(np.linspace(0, len(ranks) - 1, min(len(ranks), MAX_COMPARED)).round().astype(int))
    return [ranks[place] for place in places]


def _typical(ranks: list[int], model: Head, answered: str, instead: str, features: FeatureSet) -> int:
    """The rank with log-odds of the two classes nearest to the mean of all."""
    if len(ranks) == 1:
        return ranks[0]
    odds = _log_odds(model, answered, instead, features.rank[ranks])
    return ranks[int(np.abs(odds - odds.mean()).argmin())]


def _log_odds(model: Head, answered: str, instead: str, rows: FloatArray) -> FloatArray:
    """Calibrated log-odds of two of a head's classes, shape (n_rows,)."""
    chances = np.log(np.maximum(model.probabilities(rows), 1e-9))
    odds: FloatArray = chances[:, model.classes.index(answered)] - chances[:, model.classes.index(instead)]
    return odds


def _most_suspected(suspect: Suspect, classification: Classification) -> int:
    return max(suspect.component.ranks, key=lambda each: (classification.rank_probability[each], -each))


def _largest(
    head: str,
    moved: FloatArray,
    rank: int | None,
    classifier: Classifier,
    features: FeatureSet,
    known: set[str],
) -> list[Contribution]:
    """The observations with the largest contributions, one per subject that is not known yet."""
    table = "rank" if HEADS[head] is RANK_FEATURES else "window"
    row = features.window if rank is None else features.rank[rank]
    usual = classifier.doubt.healthy[table]
    seen = set(known)
    found: list[Contribution] = []
    for index in np.argsort(-np.abs(moved), kind="stable"):
        log_odds, column = float(moved[index]), int(classifier.heads[head].columns[index])
        if abs(log_odds) < MIN_LOG_ODDS or len(found) == MAX_SHOWN:
            break
        feature = table_of(table)[column]
        about = subject(feature.name)
        if about in seen or feature.name in _SCENE or feature_groups()[feature.name] == _SCENE_GROUP:
            continue
        reading = read_feature(feature, float(row[column]), float(usual[column]), features, rank)
        if reading is None:
            continue
        seen.add(about)
        found.append(
            Contribution(
                signal=reading.signal,
                value=reading.value,
                reference=reading.reference,
                unit=reading.unit,
                note=reading.note,
                direction="for" if log_odds > 0 else "against",
                log_odds=log_odds,
            )
        )
    return found


def _subjects(causes: Iterable[Cause]) -> set[str]:
    return {subject_of_signal(evidence.signal) for cause in causes for evidence in cause.evidence}
