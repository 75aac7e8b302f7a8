"""Rows of the tables of a window: columns, units, attempts and their validation."""
