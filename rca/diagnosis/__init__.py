"""The pipeline that chains every stage, and the result types."""

from rca.diagnosis.bundle import Bundle
from rca.diagnosis.pipeline import diagnose
from rca.diagnosis.result import Diagnosis

__all__ = ["Bundle", "Diagnosis", "diagnose"]
