"""Every table of the service: importing this module fills ``Base.metadata``."""

from __future__ import annotations

from rca_api.diagnoses import tables as diagnoses
from rca_api.security import tables as security
from rca_api.store.base import Base

__all__ = ["Base", "diagnoses", "security"]
