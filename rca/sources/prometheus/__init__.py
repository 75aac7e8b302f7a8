"""Prometheus as a source: the exporters' samples of one job, as they were scraped."""

from rca.sources.prometheus.window import read_prometheus

__all__ = ["read_prometheus"]
