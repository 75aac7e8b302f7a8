"""Shards of a data set for workers of a training job: each sample is trained once in each epoch."""
