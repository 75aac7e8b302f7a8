"""Names in a window: of jobs, nodes, metrics, devices, events and operations.

Terminals, logs, messages and addresses show them. So they are not blank, every character of them is seen,
and none changes the order of others. Browsers and HTTP clients drop path segments `.` and `..`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from rca.arrays import BoolArray

#: Categories of Unicode: control characters, formatting characters (such as marks of direction, and those
#: without a width), line and paragraph separators.
UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp"})
#: The same for Arrow; Python's `re` does not know categories.
_UNSEEN = "[" + "".join(rf"\p{{{category}}}" for category in sorted(UNSEEN)) + "]"
#: Letters and marks without a shape: Default_Ignorable_Code_Point of Unicode, without the categories above,
#: and the blank of Braille.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000\U000e0002-\U000e001f\U000e0080-\U000e0fff]"
)
BLANK = "is blank"
UNPRINTABLE = "has a control or formatting character"
INVISIBLE = "has an invisible character"
RELATIVE = "has a path segment . or .."
#: What a name has to be, for errors.
EXPECTED_NAME = (
    "a name that is not blank, without control, formatting or invisible characters, and without path "
    "segments . and .."
)
_RELATIVE = re.compile(r"(^|/)\.\.?(/|$)")
_accepted_before = ContextVar("accepted_before", default=False)


@contextmanager
def accepted_before() -> Iterator[None]:
    """Read what was stored: an earlier version may have accepted names that are refused now."""
    token = _accepted_before.set(True)
    try:
        yield
    finally:
        _accepted_before.reset(token)


def flaw_of(name: str) -> str | None:
    """Why a text cannot be a name; None if it can."""
    if _accepted_before.get():
        return None
    if not name.strip():
        return BLANK
    if _RELATIVE.search(name):
        return RELATIVE
    if has_unseen_character(name):
        return UNPRINTABLE
    return INVISIBLE if _INVISIBLE.search(name) else None


def flaws_of(names: pa.Array) -> dict[str, BoolArray]:
    """For each flaw, which of the names have it; as `flaw_of`, for columns of names."""
    if _accepted_before.get():
        return {}
    found = {
        BLANK: pc.equal(pc.utf8_trim_whitespace(names), ""),
        RELATIVE: pc.match_substring_regex(names, _RELATIVE.pattern),
        UNPRINTABLE: pc.match_substring_regex(names, _UNSEEN),
        INVISIBLE: pc.match_substring_regex(names, _INVISIBLE.pattern),
    }
    return {flaw: each.to_numpy(zero_copy_only=False) for flaw, each in found.items()}


def has_unseen_character(text: str) -> bool:
    """Whether a text has a control or formatting character, or a line break."""
    return not text.isprintable() and any(unicodedata.category(letter) in UNSEEN for letter in text)


def _name(text: str) -> str:
    flaw = flaw_of(text)
    if flaw is not None:
        raise PydanticCustomError("name", "{flaw}", {"flaw": flaw})
    return text


def one_line(text: str) -> str:
    """Give the text back, for models; a control or formatting character is an error."""
    if not _accepted_before.get() and has_unseen_character(text):
        raise PydanticCustomError("one_line", UNPRINTABLE)
    return text


#: Part of the rule: tools that read JSON Schema differ in which expressions they know.
_SCHEMA = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*$"}
#: A name, for models.
Name = Annotated[str, Field(json_schema_extra=_SCHEMA | {"minLength": 1}), AfterValidator(_name)]
#: A text of one line, perhaps empty, for models.
Line = Annotated[str, Field(json_schema_extra=_SCHEMA), AfterValidator(one_line)]


#: How a note on columns that are no columns of the format begins, after the table's name.
DROPPED_COLUMNS = "dropped unknown columns"
_SUFFIX_OF_UNIT = re.compile(r"_(ms|msec|millis|milliseconds|us|usec|micros|ns|nanos|s|sec|secs)$")
_ALIKE = 0.8
_MAX_SUGGESTIONS = 3


def meant_names(unknown: Iterable[str], free: Collection[str]) -> dict[str, str]:
    """Unknown names that are probably misspelt, each with the name of the format that it is close to.

    Parameters
    ----------
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
        if close and len(found) < _MAX_SUGGESTIONS:
            found[name] = close[0]
    return found
