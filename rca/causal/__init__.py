"""Why a job is slow, in seconds per step: mechanisms, counterfactual attribution."""

from rca.causal.attribution import Attribution, attribute
from rca.causal.mechanisms import Mechanisms

__all__ = ["Attribution", "Mechanisms", "attribute"]
