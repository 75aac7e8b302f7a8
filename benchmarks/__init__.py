"""Cost of the product, each figure with its lower bound: ``python -m benchmarks``."""
