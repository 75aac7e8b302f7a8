"""Alerts of other systems, answered with a diagnosis of the job that they are about."""
