"""Root-cause analysis for slow and stopped distributed training jobs.

>>> import rca
>>> window = rca.read_window("data/windows/cpu-contention-node")
>>> diagnosis = rca.diagnose(window)
>>> diagnosis.failure_mode
'fail_slow'
"""

from rca.diagnosis import Bundle, Diagnosis, diagnose
from rca.errors import (
    BundleError,
    InvalidInput,
    InvalidTrace,
    InvalidWindow,
    MissingExtra,
    RcaError,
    SourceError,
    TooLarge,
)
from rca.telemetry import Window, read_window

__all__ = [
    "Bundle",
    "BundleError",
    "Diagnosis",
    "InvalidInput",
    "InvalidTrace",
    "InvalidWindow",
    "MissingExtra",
    "RcaError",
    "SourceError",
    "TooLarge",
    "Window",
    "diagnose",
    "read_window",
]
