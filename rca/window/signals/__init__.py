"""Signals of a window as arrays over ranks and steps."""
