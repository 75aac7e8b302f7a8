"""Root-cause ranking of the columns of any tabular telemetry, with or without a causal graph."""

from rca.causal.ranking.rank import rank_causes

__all__ = ["rank_causes"]
