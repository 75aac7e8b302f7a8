"""What an agent reads from the service: open incidents, their state, and what a plan recommends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from rca.client import Client, ServiceError
from rca.errors import SourceError
from rca.recovery.option import Option
from rca.recovery.site import Site

#: Key of the action of an agent on an incident: the service takes one.
CLAIM: Final = "rca act"
#: Actions of a day that are read. No policy allows more.
MAX_BEGUN: Final = 200


class _Answer(BaseModel):
    # A newer service may say more.
    model_config = ConfigDict(extra="ignore", frozen=True)


class JudgedWindow(_Answer):
    """One window of an incident, as the service judged it."""

    diagnosis_id: str
    verdict: str
    window_end: datetime


class RecordedAction(_Answer):
    """An action that someone recorded on an incident."""

    note: str


class IncidentFacts(_Answer):
    """The state of an incident, its windows with the newest first, and the actions taken on it."""

    id: str
    job_id: str
    state: str
    suspected: bool
    uncertain: bool
    cause: str | None
    acknowledged_at: datetime | None
    assigned_to: str | None
    diagnoses: tuple[JudgedWindow, ...]
    actions: tuple[RecordedAction, ...]

    @property
    def newest(self) -> JudgedWindow | None:
        """The newest window with a certain verdict."""
        return next((each for each in self.diagnoses if each.verdict in ("sick", "healthy")), None)


class BegunAction(_Answer):
    """An action of an agent, as the service recorded it before its first step.

    Attributes
    ----------
    recorded_at : datetime
        On the clock of the service.
    """

    action: str
    nodes: tuple[str, ...]
    note: str
    recorded_at: datetime


class ServiceFacts:
    """Reads facts; each call raises `RcaError` if the service does not give them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def now(self) -> float:
        """Unix seconds on the clock of the service: that of this machine may jump."""
        self._client.get("/healthz")
        if self._client.answered_at is None:
            raise SourceError("the answers of the service have no Date", hint="check the proxy before it")
        return self._client.answered_at

    def begun(self, job: str, since: float) -> list[BegunAction]:
        """Actions of all agents on a job since a time, Unix seconds."""
        at = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = f"/v1/actions?job={quote(job, safe='')}&since={at}&key={quote(CLAIM)}&limit={MAX_BEGUN}"
        found = self._read(path)
        try:
            return TypeAdapter(list[BegunAction]).validate_python(found.get("items"))
        except ValidationError as error:
            raise _odd(path, str(error.errors()[0]["loc"])) from None

    def open_incidents(self, job: str) -> list[str]:
        """Ids of the open incidents of a job."""
        found = self._read(f"/v1/incidents?state=open&job={quote(job, safe='')}")
        items = found.get("items")
        return [str(each["id"]) for each in items] if isinstance(items, list) else []

    def incident(self, incident_id: str) -> IncidentFacts:
        """An incident as it is now."""
        path = f"/v1/incidents/{incident_id}"
        try:
            return IncidentFacts.model_validate(self._read(path))
        except ValidationError as error:
            raise _odd(path, str(error.errors()[0]["loc"])) from None

    def recommended(self, diagnosis_id: str, site: Site) -> Option | None:
        """The option that the plan of a diagnosis recommends now; None where it says to wait."""
        given = site.model_dump(mode="json", exclude_unset=True)
        plan = self._client.post("/v1/plans", {"diagnosis_id": diagnosis_id, "site": given})
        try:
            options = TypeAdapter(list[dict[str, Any]]).validate_python(plan["options"])
            found = [each for each in options if each["action"] == plan["first"]]
            known = [{name: each[name] for name in each if name in Option.model_fields} for each in found]
            return Option.model_validate(known[0]) if known else None
        except (KeyError, ValidationError):
            raise _odd("/v1/plans", "options") from None

    def has_ended(self, job: str) -> bool:
        """Whether its trainer has ended the job; a job whose windows are posted has no end."""
        try:
            return self._client.telemetry(job).get("ended_at") is not None
        except ServiceError as error:
            if error.status == 404:
                return False
            raise

    def _read(self, path: str) -> dict[str, Any]:
        try:
            found = orjson.loads(self._client.get(path))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise _odd(path, "its document")
        return found


def _odd(path: str, what: str) -> SourceError:
    return SourceError(
        f"the answer to {path} is not one of this service: {what}",
        hint="check the address, and the releases of both",
    )
