"""Telling other systems of incidents: signed, retried, never lost silently."""
