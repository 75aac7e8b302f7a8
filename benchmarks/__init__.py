"""What the product costs, each figure beside the least it could cost: ``python -m benchmarks``."""
