"""Failure mode, stragglers, type and a prior over causes: LightGBM heads, calibrated."""
