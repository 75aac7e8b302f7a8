"""Telemetry of running jobs: sent as it comes, cut into windows, and diagnosed at a change."""
