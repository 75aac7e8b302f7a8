"""Names in a window: of jobs, nodes, metrics, devices, events and operations.

Terminals, logs, messages and addresses show them, so they are not blank and have no control characters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

#: Control characters and line breaks of Unicode, as a regular expression of Python and of Arrow.
CONTROL_CHARACTER = "[\\x00-\\x1f\\x7f-\\x9f\u2028\u2029]"
BLANK = "is blank"
UNPRINTABLE = "has a control character"
#: What a name has to be, for errors.
EXPECTED_NAME = "a name that is not blank and has no control characters"
_CONTROL = re.compile(CONTROL_CHARACTER)


def flaw_of(name: str) -> str | None:
    """Why a text cannot be a name; None if it can."""
    if not name.strip():
        return BLANK
    return UNPRINTABLE if has_control_character(name) else None


def has_control_character(text: str) -> bool:
    """Whether a text has a control character or a line break."""
    return _CONTROL.search(text) is not None


def _name(text: str) -> str:
    flaw = flaw_of(text)
    if flaw is not None:
        raise PydanticCustomError("name", "{flaw}", {"flaw": flaw})
    return text


def _one_line(text: str) -> str:
    if has_control_character(text):
        raise PydanticCustomError("one_line", UNPRINTABLE)
    return text


_SCHEMA = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*$"}
#: A name, for models.
Name = Annotated[str, Field(json_schema_extra=_SCHEMA | {"minLength": 1}), AfterValidator(_name)]
#: A text of one line, perhaps empty, for models.
Line = Annotated[str, Field(json_schema_extra=_SCHEMA), AfterValidator(_one_line)]


#: How a note on columns that are no columns of the format begins, after the table's name.
DROPPED_COLUMNS = "dropped unknown columns"
_SUFFIX_OF_UNIT = re.compile(r"_(ms|msec|millis|milliseconds|us|usec|micros|ns|nanos|s|sec|secs)$")
_ALIKE = 0.8
_MOST_SUGGESTIONS = 3


def meant_names(unknown: Iterable[str], free: Collection[str]) -> dict[str, str]:
    """Unknown names that are probably misspelt, each with the name of the format that it is close to.

    Parameters
    ----------
    unknown : iterable of str
    free : collection of str
        Names of the format that are not taken.

    Returns
    -------
    dict of str to str
        At most three. A name with a unit, such as ``forward_ms``, is close to ``forward_seconds``.
    """
    found: dict[str, str] = {}
    for name in unknown:
        in_seconds = _SUFFIX_OF_UNIT.sub("_seconds", name)
        close = [in_seconds] if in_seconds in free else get_close_matches(name, free, n=1, cutoff=_ALIKE)
        if close and len(found) < _MOST_SUGGESTIONS:
            found[name] = close[0]
    return found
