"""Every table of the service: importing this module fills ``Base.metadata``."""

from __future__ import annotations

from rca_api.diagnoses import tables as diagnoses
from rca_api.models import tables as models
from rca_api.store.base import Base
from rca_api.training_runs import tables as training_runs

__all__ = ["Base", "diagnoses", "models", "training_runs"]
