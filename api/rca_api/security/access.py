"""The dependency with which an endpoint requires a scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer

from rca_api.parameters import refuse_unknown
from rca_api.problems import ProblemError
from rca_api.security.principal import Principal, Scope
from rca_api.state import State

# Only for the OpenAPI document: `Authority` reads the headers, and reports better what is wrong.
_BEARER = HTTPBearer(
    auto_error=False, description="An API key (`rca_...`), or a token of the configured OIDC issuer."
)
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, description="An API key.")


def requires(*scopes: Scope) -> Callable[..., Principal]:
    """Make a dependency that gives the caller if it holds one of `scopes`; else it raises 401, 403 or 429.

    It raises 422 for a query parameter that the operation does not have.

    The dependency is a plain function, so that FastAPI runs it in a thread: it reads the database.
    """
    wanted = " or ".join(repr(scope.value) for scope in scopes)

    def caller(
        request: Request,
        _bearer: Annotated[object, Security(_BEARER)],
        _header: Annotated[object, Security(_HEADER)],
    ) -> Principal:
        found = State.of(request).authority.identify(request)
        if not any(found.may(scope) for scope in scopes):
            held = ", ".join(sorted(each.value for each in found.scopes)) or "none"
            raise ProblemError(
                "forbidden",
                f"this needs the scope {wanted}; the caller has: {held}",
                headers={"Connection": "close"},
            )
        request.state.caller = found.id
        refuse_unknown(request)
        return found

    return caller
