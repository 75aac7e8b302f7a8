"""The dependency by which an endpoint says which scope it asks for."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request

from rca_api.problems import ProblemError
from rca_api.security.principal import ANYBODY, Principal, Scope


def requires(scope: Scope) -> Callable[[Request], Principal]:
    """Make a dependency that gives the caller, if it holds `scope`; else 401 or 403."""

    def caller(request: Request) -> Principal:
        found = identify(request)
        if not found.may(scope):
            raise ProblemError("forbidden", f"this needs the scope {scope.value!r}")
        return found

    return caller


def identify(request: Request) -> Principal:
    """Find out who asks; as long as there are no keys, everybody may do everything."""
    del request
    return ANYBODY
