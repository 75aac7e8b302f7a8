"""Seconds of each phase, rank and step, with waiting and untimed work told apart."""
