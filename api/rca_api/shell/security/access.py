"""The dependency with which an operation requires a scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Request, Security
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.routing import BaseRoute

from rca_api.shell.requests.parameters import refuse_unknown
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security.principal import Principal, Scope
from rca_api.shell.state import State

# Only for the OpenAPI document: `Authority` reads the headers, and reports better what is wrong.
_BEARER = HTTPBearer(
    auto_error=False, description="An API key (`rca_...`), or a token of the configured OIDC issuer."
)
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, description="An API key.")


@dataclass(frozen=True)
class Requirement:
    """A dependency that gives the caller if it holds one of `scopes`; else it raises 401, 403 or 429.

    It raises 422 for a query parameter that the operation does not have.

    It is no coroutine, so that FastAPI runs it in a thread: it reads the database.
    """

    scopes: tuple[Scope, ...]

    def __call__(
        self,
        request: Request,
        _bearer: Annotated[object, Security(_BEARER)],
        _header: Annotated[object, Security(_HEADER)],
    ) -> Principal:
        """Identify the caller and check its scopes."""
        found = State.of(request).authority.identify(request)
        if not any(found.may(scope) for scope in self.scopes):
            wanted = " or ".join(repr(scope.value) for scope in self.scopes)
            held = ", ".join(sorted(each.value for each in found.scopes)) or "none"
            raise ProblemError(
                "forbidden",
                f"this needs the scope {wanted}; the caller has: {held}",
                headers={"Connection": "close"},
            )
        request.state.caller = found.id
        refuse_unknown(request)
        return found


def requires(*scopes: Scope) -> Requirement:
    """Make the dependency of an operation that needs one of `scopes`."""
    return Requirement(scopes)


#: The caller of an operation, with the scope that it needs.
Reader = Annotated[Principal, Security(requires(Scope.read))]
Diagnoser = Annotated[Principal, Security(requires(Scope.diagnose))]
FeedbackGiver = Annotated[Principal, Security(requires(Scope.feedback))]
Admin = Annotated[Principal, Security(requires(Scope.admin))]
#: Callers that create or judge a diagnosis know its id, and ids cannot be guessed.
ReaderOfOne = Annotated[Principal, Security(requires(Scope.read, Scope.diagnose, Scope.feedback))]


def required(route: BaseRoute) -> tuple[Scope, ...]:
    """The scopes of which an operation needs one; empty for an operation that needs no key."""
    needs = route.dependant.dependencies if isinstance(route, APIRoute) else ()
    return tuple(scope for each in needs if isinstance(each.call, Requirement) for scope in each.call.scopes)
