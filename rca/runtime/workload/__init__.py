"""Fixes of the workload: stage balance, sequence packing and planned garbage collection."""
