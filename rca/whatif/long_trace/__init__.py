"""Traces that do not fit in memory, analysed in blocks."""
