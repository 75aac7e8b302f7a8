"""Names in a window: of jobs, nodes, metrics, devices, events and operations.

Terminals, logs, messages and addresses show them, so they are not blank and have no control characters.
"""

from __future__ import annotations

import re
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
