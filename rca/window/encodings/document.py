"""What the encodings have in common: the job's document, and a window before validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from rca.errors import InvalidWindow
from rca.window.encodings.json_text import Text, parsed_json
from rca.window.job import Job


class Decoded(NamedTuple):
    """A window as it was sent, before validation.

    Attributes
    ----------
    job : mapping
        The metadata's JSON object.
    tables : dict of str to pyarrow.Table
        Only the tables that were sent.
    notes : tuple of str
        What the decoder dropped.
    """

    job: Mapping[str, object]
    tables: dict[str, pa.Table]
    notes: tuple[str, ...] = ()


def job_fields(job: Job) -> dict[str, Any]:
    """The job's metadata as plain data, without fields that were not given."""
    return job.model_dump(mode="json", exclude_none=True)


def parsed_job(body: Text, *, max_memory: int | None = None) -> Mapping[str, Any]:
    """The decoded metadata document, not yet validated.

    Raises
    ------
    InvalidWindow
        If it is not a JSON object.
    TooLarge
        If it may take more than `max_memory` bytes.
    """
    document = parsed_json(body, "job", max_memory=max_memory)
    if not isinstance(document, dict):
        raise InvalidWindow(f"is a JSON {json_kind(document)}", table="job", expected="an object")
    return document


def json_kind(value: object) -> str:
    """What JSON calls the type of a decoded value."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
