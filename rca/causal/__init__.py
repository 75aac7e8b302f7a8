"""Why a job is slow, in seconds per step: cause graph, mechanisms, counterfactual attribution."""

from rca.causal.attribution import Attribution, attribute
from rca.causal.graph import cause_edges
from rca.causal.mechanisms import Mechanisms

__all__ = ["Attribution", "Mechanisms", "attribute", "cause_edges"]
