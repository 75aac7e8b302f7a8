"""Kernel and process counters at a fixed rate, under the exporters' names."""
