"""Types of query parameters that several lists take."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("needs a time zone, for example Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range") from None


#: A moment with its time zone, in UTC: near the ends of the calendar not every one has its like there.
Moment = Annotated[datetime, AfterValidator(_utc)]
