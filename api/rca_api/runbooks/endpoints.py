"""`/v1/runbooks`: the runbook of a cause, filled from a stored diagnosis."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from rca.diagnosis.result import Diagnosis
from rca.runbook.procedures import DiagnosedCause, Runbook, runbook
from rca.runbook.procedures.pages import markdown
from rca.runbook.procedures.sources import Platform
from rca.window.causes import SPECS, CauseOwner
from rca_api.diagnoses.answers import finished_row
from rca_api.diagnoses.stored import read_stored
from rca_api.shell.requests.negotiation import choose
from rca_api.shell.requests.problems import COMMON, ProblemError, problem_responses
from rca_api.shell.security.access import ReaderOfOne
from rca_api.shell.state import State

router = APIRouter(prefix="/v1/runbooks", tags=["runbooks"])

_MARKDOWN = "text/markdown"


class RunbookSummary(BaseModel):
    """A cause that has a runbook."""

    cause: str
    meaning: str
    owner: CauseOwner
    of_site: bool = Field(description="The site's own runbook, in place of that of the package.")


class RunbookList(BaseModel):
    """All runbooks, in the order of the catalogue."""

    runbooks: list[RunbookSummary]


@router.get("", summary="List runbooks", responses=problem_responses(*COMMON))
def list_runbooks(request: Request, _: ReaderOfOne) -> RunbookList:
    """List the causes; each has a runbook."""
    library = State.of(request).runbooks
    return RunbookList(
        runbooks=[
            RunbookSummary(
                cause=cause,
                meaning=SPECS[cause].meaning,
                owner=SPECS[cause].owner,
                of_site=cause in library.of_site,
            )
            for cause in library.runbooks
        ]
    )


@router.get(
    "/{cause}",
    summary="Show the runbook of a cause",
    response_class=Response,
    responses={
        200: {
            "description": "The runbook, in the media type of Accept.",
            "model": Runbook,
            "content": {_MARKDOWN: {"schema": {"type": "string"}}},
        },
        **problem_responses(*COMMON, "not-found", "conflict", "not-acceptable"),
    },
)
def show_runbook(
    request: Request,
    cause: Annotated[str, Path(pattern="^[a-z][a-z_]{0,63}$", description="Catalogue id, or `unknown`.")],
    _: ReaderOfOne,
    diagnosis: Annotated[
        str | None,
        Query(
            pattern="^[0-9a-f]{32}$",
            description="Id of a finished diagnosis. It fills nodes, ranks and devices into the commands.",
        ),
    ] = None,
    platform: Annotated[
        Platform | None, Query(description="Where the job runs. Default: the site's, else `host`.")
    ] = None,
) -> Response:
    """Show how to verify, contain, fix, roll back, escalate and confirm a cause.

    Steps that change something are marked, and each has a line in the roll back. Words in capitals stand for
    what is not known; `replace` says how to find them.
    """
    accept = choose(request.headers.get("accept"), ("application/json", _MARKDOWN))
    library = State.of(request).runbooks
    if cause not in library.runbooks:
        raise ProblemError("not-found", f"there is no cause {cause!r}", expected=", ".join(library.runbooks))
    incident = None if diagnosis is None else DiagnosedCause.of(_diagnosis(request, diagnosis), cause)
    found = runbook(library, cause, platform=platform, incident=incident)
    content = markdown(found) if accept == _MARKDOWN else found.model_dump_json()
    return Response(content, media_type=accept, headers={"Vary": "Accept"})


def _diagnosis(request: Request, diagnosis_id: str) -> Diagnosis:
    """A finished diagnosis."""
    with State.of(request).database.reading() as session:
        _, document = finished_row(session, diagnosis_id, "a runbook needs a finished one")
    return read_stored(document)
