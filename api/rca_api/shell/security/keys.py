"""API keys: ``rca_<id>_<secret>``; the database holds only a digest of the secret.

The secret has 256 random bits, so its SHA-256 cannot be found by search. A slow password hash would only slow
down requests.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import String, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from rca.errors import InvalidInput
from rca.window.names import EXPECTED_NAME, flaw_of
from rca_api.shell.security.principal import Principal, Scope
from rca_api.shell.store.base import Base, UtcDateTime, now
from rca_api.shell.store.database import Database

MAX_NAME_LENGTH = 128


class ApiKeyRow(Base):
    """One key: its public id, and the SHA-256 of its secret."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(MAX_NAME_LENGTH))
    secret_sha256: Mapped[str] = mapped_column(String(64))
    #: Scopes, separated by spaces.
    scopes: Mapped[str] = mapped_column(String(256))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: Last use, to the hour: a write per request would cost more than a diagnosis.
    used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


KEY_PREFIX = "rca_"
_FORM = re.compile(r"rca_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_USED_AT_PRECISION = timedelta(hours=1)


def create(
    session: Session, name: str, scopes: Collection[Scope], expires_at: datetime | None = None
) -> tuple[ApiKeyRow, str]:
    """Create a key; gives its row and the key, which cannot be shown again."""
    if not scopes:
        raise InvalidInput("a key needs a scope", hint="--scope diagnose, for example")
    flaw = flaw_of(name) or ("is too long" if len(name) > MAX_NAME_LENGTH else None)
    if flaw is not None:
        raise InvalidInput(
            f"the name of the key {flaw}",
            hint=f"use {EXPECTED_NAME}, of up to {MAX_NAME_LENGTH} characters",
        )
    secret = secrets.token_urlsafe(32)
    row = ApiKeyRow(
        id=secrets.token_hex(8),
        name=name,
        secret_sha256=_digest(secret),
        scopes=" ".join(sorted(scope.value for scope in set(scopes))),
        expires_at=expires_at,
    )
    session.add(row)
    return row, f"{KEY_PREFIX}{row.id}_{secret}"


def listed(session: Session) -> list[ApiKeyRow]:
    """All keys, the newest first, including the revoked ones."""
    return list(session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created_at.desc())))


def revoke(session: Session, key_id: str) -> ApiKeyRow:
    """Revoke a key; it is refused from the next request on. Revoking it again changes nothing.

    Raises
    ------
    InvalidInput
        If there is no such key.
    """
    row = session.get(ApiKeyRow, key_id)
    if row is None:
        raise InvalidInput(f"there is no key {key_id!r}", hint="`rca keys list` shows the ids")
    row.revoked_at = row.revoked_at or now()
    return row


def verified(database: Database, key: str, moment: datetime | None = None) -> Principal | None:
    """The caller with this key; None if the key is malformed, unknown, expired or revoked.

    Read from the database each time, so that every replica refuses a revoked key at once.
    """
    form = _FORM.fullmatch(key)
    if form is None:
        return None
    key_id, secret = form.groups()
    moment = moment or now()
    with database.reading() as session:
        row = session.get(ApiKeyRow, key_id)
    if row is None or not hmac.compare_digest(row.secret_sha256, _digest(secret)):
        return None
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= moment):
        return None
    if row.used_at is None or moment - row.used_at > _USED_AT_PRECISION:
        # Only this column: the row read before may be old, and must not undo a revocation.
        used = update(ApiKeyRow).where(ApiKeyRow.id == row.id).values(used_at=moment)
        with database.session() as session:
            session.execute(used)
    return Principal(f"key:{row.id}", row.name, frozenset(Scope(scope) for scope in row.scopes.split()))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
