"""Who is asking, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What a key may be used for; `admin` includes all others.

    Single diagnoses, by their ids, are read with `diagnose` and `feedback` as well as with `read`.
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
        For people: the key's name, the token's user.
    scopes : frozenset of Scope
    """

    id: str | None
    name: str
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        """Whether it may do what `scope` stands for."""
        return scope in self.scopes or Scope.admin in self.scopes


#: Everybody, where authentication is switched off.
ANYBODY = Principal(None, "anybody", frozenset(Scope))
