"""The sign-in of the page at a token issuer: where the browser goes, and the token for its code."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ValidationError

from rca_api.shell.requests.admission import short_body
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security.authority import address_of
from rca_api.shell.security.sign_in import GivenCode
from rca_api.shell.state import State

router = APIRouter(prefix="/ui/sign-in", include_in_schema=False)

#: Callers are not known yet, so the body is smaller than others.
_BODY_BYTES, _BODY_SECONDS = 16 << 10, 10.0


class SignInClient(BaseModel):
    """What the page needs to send the browser to the issuer."""

    address: str
    client_id: str
    scope: str


class Token(BaseModel):
    """The token that the page sends with its requests."""

    token: str


@router.get("")
def show_client(request: Request) -> SignInClient:
    """Show where the browser signs in."""
    sign_in = State.of(request).authority.required_sign_in()
    return SignInClient(address=sign_in.address, client_id=sign_in.client_id, scope=sign_in.scope)


@router.post("")
async def exchange_code(request: Request) -> Token:
    """Exchange the code of a sign-in for a token."""
    state = State.of(request)
    code = await _read(request, state)
    return Token(token=await run_in_threadpool(state.authority.exchange, request, code))


async def _read(request: Request, state: State) -> GivenCode:
    with state.admission.body(address_of(request)) as ticket:
        body = await short_body(request, ticket, _BODY_BYTES, _BODY_SECONDS)
    try:
        return GivenCode.model_validate_json(body)
    except ValidationError as error:
        # Without the values: one of them is a secret.
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(("body", *map(str, first["loc"])))
        raise ProblemError("invalid-parameters", f"{place}: {first['msg']}") from None
