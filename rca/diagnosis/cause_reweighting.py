"""What machines say of a suspect's causes, for them and against them."""

from __future__ import annotations

from rca.causal.scores import BusyEvidence
from rca.classify.classifier import Suspect
from rca.diagnosis.contradiction import contradicted
from rca.diagnosis.corroboration import corroborated
from rca.features import FeatureSet


def heard(suspect: Suspect, features: FeatureSet, busy: BusyEvidence) -> Suspect:
    """The suspect with what is loud believed more, and what is normal less.

    Parameters
    ----------
    suspect : Suspect
    features : FeatureSet
    busy : BusyEvidence
    """
    return contradicted(corroborated(suspect, features, busy), features, busy)
