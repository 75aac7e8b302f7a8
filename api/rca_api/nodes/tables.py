"""Which nodes were watched in which jobs: without it, a blame could not be held against anything."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from rca_api.store.base import Base, UtcDateTime


class NodeExposureRow(Base):
    """A node that diagnosed windows of a job ran on."""

    __tablename__ = "node_exposures"

    node: Mapped[str] = mapped_column(String(256), primary_key=True)
    job_id: Mapped[str] = mapped_column(String(256), primary_key=True)
    #: Begin of the earliest and end of the latest window, Unix seconds.
    first_seen: Mapped[float]
    last_seen: Mapped[float]
    windows: Mapped[int]
    #: Service's clock; memory of a node goes by it.
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
