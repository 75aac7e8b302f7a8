"""Failure mode, stragglers, type, pattern and a prior over causes: LightGBM heads, calibrated."""
