"""`/v1/training-runs`: orders to train or to compare models, worked off by `rca worker`, one at a time."""
