"""The page, its files, and the documents that only it reads; none of them is part of the API."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi import Path as PathParameter
from pydantic import BaseModel
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from rca.diagnosis.result import Diagnosis, Verdict
from rca.runbook.page import RunbookPage
from rca.runbook.phrases import Phrase, plain
from rca.window.catalogue import channels
from rca.window.causes import SPECS
from rca_api.actions.schemas import NAMES
from rca_api.diagnoses.answers import finished_row
from rca_api.diagnoses.stored import read_stored
from rca_api.incidents.repository import incident_of
from rca_api.shell.security.access import ReaderOfOne
from rca_api.shell.state import State
from rca_api.ui import sign_in

PATH = "/ui"
_FILES = Path(__file__).parent / "static"

router = APIRouter(prefix=PATH, include_in_schema=False)


def install(app: FastAPI) -> None:
    """Add the page, its files and its documents."""
    app.add_route("/", _to_page, include_in_schema=False)
    app.add_route(PATH, _page, include_in_schema=False)
    app.include_router(router)
    app.include_router(sign_in.router)
    app.mount(f"{PATH}/files", StaticFiles(directory=_FILES))


def _page(_: Request) -> Response:
    return FileResponse(_FILES / "index.html")


def _to_page(_: Request) -> Response:
    return RedirectResponse(PATH)


class SummaryRow(BaseModel):
    """One part of the text."""

    title: str
    lines: list[str]


class DiagnosisText(BaseModel):
    """The text of a diagnosis: what a person needs first, and the rest."""

    verdict: Verdict
    headline: str
    rows: list[SummaryRow]
    more: list[SummaryRow]
    window_digest: str | None
    incident_id: str | None


@router.get("/catalogue")
def show_catalogue() -> dict[str, Any]:
    """Show the causes, the actions, and the exporter metrics of each signal."""
    return _catalogue()


@router.get("/access")
def show_access(request: Request) -> dict[str, bool]:
    """Show whether callers need a key, and whether they can sign in at an issuer to have none."""
    state = State.of(request)
    return {"keys": state.settings.auth == "keys", "sign_in": state.authority.sign_in is not None}


@router.get("/diagnoses/{diagnosis_id:id}")
def show_text(
    request: Request, diagnosis_id: Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$")], _: ReaderOfOne
) -> DiagnosisText:
    """Show a finished diagnosis in words, the digest of its window, and its incident."""
    with State.of(request).database.reading() as session:
        row, document = finished_row(session, diagnosis_id, "wait until it is finished")
        incident_id = incident_of(session, diagnosis_id)
    return text_of(read_stored(document), row.window_digest, incident_id)


@cache
def _catalogue() -> dict[str, Any]:
    causes = [
        {"id": spec.id, "type": spec.type, "owner": spec.owner, "meaning": spec.meaning}
        for spec in SPECS.values()
    ]
    signals = {
        channel: sorted({name for each in feeding for name in (each.name, *each.aliases)})
        for channel, feeding in channels().items()
    }
    return {"causes": causes, "actions": NAMES, "signals": signals}


def text_of(diagnosis: Diagnosis, window_digest: str | None, incident_id: str | None) -> DiagnosisText:
    """Put a diagnosis into words.

    Parameters
    ----------
    window_digest : str or None
        None once retention has deleted the window.
    incident_id : str or None
        None if its window belongs to no incident.
    """
    page = RunbookPage.from_diagnosis(diagnosis)
    suspicions = [_row(plain(each.title), each.evidence) for each in page.suspicions]
    more = [
        _row("All actions", page.actions),
        _row("Cost", [*page.facts, page.unexplained]),
        *(_row(plain(each.title), each.evidence) for each in page.causes),
        *suspicions,
        _row("What the machines show", page.findings),
        _row("Signals that the window does not have", page.missing),
        _row("Quality of the window", page.quality),
        _row("Identity", [page.footer]),
    ]
    return DiagnosisText(
        verdict=page.summary.verdict,
        headline=plain(page.summary.headline),
        rows=[_row(title, lines) for title, lines in page.summary.rows],
        more=[row for row in more if row.lines],
        window_digest=window_digest,
        incident_id=incident_id,
    )


def _row(title: str, lines: Iterable[Phrase]) -> SummaryRow:
    return SummaryRow(title=title, lines=[plain(line) for line in lines if line])
