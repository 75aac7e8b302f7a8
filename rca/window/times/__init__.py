"""Seconds of each phase, rank and step, without waiting, and beside untimed work."""
