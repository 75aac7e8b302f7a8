"""Incidents as tables: synthetic families, public captures, rankings to compare with."""
