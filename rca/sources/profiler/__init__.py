"""Traces of the PyTorch profiler."""
