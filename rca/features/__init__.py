"""Window -> features: robust peer comparison, temporal shape, hardware evidence, endings."""

from rca.features.extract import FeatureSet, extract
from rca.features.table import JOB_FEATURES, RANK_FEATURES, VERSION, WINDOW_FEATURES, Feature, describe

__all__ = [
    "JOB_FEATURES",
    "RANK_FEATURES",
    "VERSION",
    "WINDOW_FEATURES",
    "Feature",
    "FeatureSet",
    "describe",
    "extract",
]
