"""Diagnoses of many windows: found, answered on workers, kept as Parquet, and summed up.

The what-if analysis of all traces of an archive is beside it: `rca.sweep.what_if`.
"""

from rca.sweep.answers import Answers, sweep
from rca.sweep.archive import Found, archived
from rca.sweep.filling import Swept
from rca.sweep.prometheus_jobs import job_windows, read_jobs
from rca.sweep.truth import read_findings, write_collection

__all__ = [
    "Answers",
    "Found",
    "Swept",
    "archived",
    "job_windows",
    "read_findings",
    "read_jobs",
    "sweep",
    "write_collection",
]
