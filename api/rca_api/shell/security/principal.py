"""Callers and their scopes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """Permission of a key; `admin` includes all others.

    A single diagnosis can be read with `diagnose` and `feedback` as well as with `read`.
    """

    diagnose = "diagnose"
    read = "read"
    feedback = "feedback"
    train = "train"
    promote = "promote"
    rollback = "rollback"
    admin = "admin"


@dataclass(frozen=True)
class Principal:
    """An authenticated caller.

    Attributes
    ----------
    id : str or None
        Key id or token subject; None where authentication is off.
    name : str
        Name of the key or user of the token, for people.
    """

    id: str | None
    name: str
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        """Whether the caller holds `scope`."""
        return scope in self.scopes or Scope.admin in self.scopes


#: All callers, if authentication is off.
ANYBODY = Principal(None, "anybody", frozenset(Scope))
