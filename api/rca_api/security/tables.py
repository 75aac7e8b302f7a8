"""API keys, without what would let anybody use them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from rca_api.store.base import Base, UtcDateTime, now


class ApiKeyRow(Base):
    """One key: its public id, and the SHA-256 of its secret."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(128))
    secret_sha256: Mapped[str] = mapped_column(String(64))
    #: Scopes, separated by spaces.
    scopes: Mapped[str] = mapped_column(String(256))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: To the hour: a write per request would cost more than a diagnosis.
    used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
