"""Grouped cross-validation of the classifier: held-out kinds of jobs, and LightGBM's settings per head."""
