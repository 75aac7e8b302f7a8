"""What the encodings have in common: the job's document, and a window before validation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from rca.errors import InvalidWindow
from rca.telemetry.job import Job

#: How other writers spell the numbers that JSON does not have.
_UNMEASURED = re.compile(rb"[\s\[:,-]?-?(NaN|nan|Infinity|inf)")


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


def parsed_job(body: bytes | bytearray | memoryview) -> Mapping[str, Any]:
    """The decoded metadata document, not yet validated.

    Raises
    ------
    InvalidWindow
        If it is not a JSON object.
    """
    document = parsed_json(body, "job")
    if not isinstance(document, dict):
        raise InvalidWindow(f"is a JSON {json_kind(document)}", table="job", expected="an object")
    return document


def parsed_json(body: bytes | bytearray | memoryview, table: str) -> Any:
    """The decoded JSON document; `table` names it in an error.

    Raises
    ------
    InvalidWindow
        With the byte position at which the JSON is wrong.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        unmeasured = _UNMEASURED.match(bytes(body[max(error.pos - 1, 0) : error.pos + 9]))
        raise InvalidWindow(
            f"is not JSON: {error.msg} (byte {error.pos} of {len(body)})",
            table=table,
            expected="a complete JSON document",
            hint="JSON has no NaN and no Infinity; write null for a value that was not measured"
            if unmeasured
            else None,
        ) from None


def json_kind(value: object) -> str:
    """What JSON calls the type of a decoded value."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
