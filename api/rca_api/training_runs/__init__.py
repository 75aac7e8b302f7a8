"""`/v1/training-runs`: training and promotion of models, done by `rca worker`, one run at a time."""
