"""Incidents: the fault of a job over many diagnoses, from its opening to its resolution."""
