"""Write selectors of PromQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from rca.errors import InvalidInput, cut

#: Alternatives in one regular expression.
MAX_ALTERNATIVES = 200

#: Needed beside matchers that only exclude.
ANY_METRIC = '__name__!=""'
#: A label matcher, as a regular expression.
MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"([^"\\]|\\.)*"'


def matcher(label: str, values: Iterable[str]) -> str:
    """A label matcher for one of several values."""
    held = list(values)
    if len(held) == 1:
        return f"{label}={quoted(held[0])}"
    return f"{label}=~{quoted('|'.join(map(escaped, held)))}"


def quoted(text: str) -> str:
    """A PromQL string."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A text as a regular expression of RE2 that matches only it."""
    return "".join(f"\\{each}" if each in r"\.+*?()|[]{}^$" else each for each in text)


def selector(*matchers: str) -> str:
    return "{" + ",".join(each for each in matchers if each) + "}"


def regex(label: str, pattern: str) -> str:
    """A label matcher for a regular expression of RE2, which has to match the whole value."""
    return f"{label}=~{quoted(pattern)}"


def hosts(label: str, names: Iterable[str]) -> str:
    """A label matcher for machines, with any domain and any port."""
    return regex(label, f"(?:{'|'.join(map(escaped, names))})(?:\\..+)?(?::[0-9]+)?")


def chunks(values: Sequence[str]) -> list[Sequence[str]]:
    """Values in pieces that fit one matcher."""
    return [values[begin : begin + MAX_ALTERNATIVES] for begin in range(0, len(values), MAX_ALTERNATIVES)]


def check_matchers(matchers: Sequence[str]) -> None:
    """Refuse what is no label matcher.

    Raises
    ------
    InvalidInput
    """
    for each in matchers:
        if not re.fullmatch(MATCHER, each):
            raise InvalidInput(f"{cut(each)!r} is no label matcher", hint='write it like cluster="eu-1"')
