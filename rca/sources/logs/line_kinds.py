"""What a line of a log says: the table `line_kinds.toml`, and its use.

Marks are plain texts, so a search for all of them at once is fast. Only a line with a mark meets the pattern
of its kind.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from rca.sources.logs.line_labels import is_harmless


@dataclass(frozen=True)
class LineKind:
    """One kind of line; the fields are described in `line_kinds.toml`."""

    name: str
    says: str
    event: str
    marks: tuple[str, ...]
    example: str
    about: Mapping[str, Any]
    source: str
    code: str | None = None
    pattern: re.Pattern[str] | None = None
    generic: bool = False
    weak: bool = False

    @property
    def is_doubtful(self) -> bool:
        """Whether a warning may have the text of this kind."""
        return self.generic or self.event == "process_error"


class Said(NamedTuple):
    """What one line says, and about which place.

    Attributes
    ----------
    ranks : tuple of int
        Ranks that the text names; empty if it is about the rank that wrote it.
    tasks : tuple of int
        Numbers of a launcher's tasks, which are ranks or nodes.
    local : int or None
        Number of the process on its node.
    """

    kind: LineKind
    code: str | None = None
    ranks: tuple[int, ...] = ()
    tasks: tuple[int, ...] = ()
    node: str | None = None
    device: str | None = None
    pid: str | None = None
    local: int | None = None


@cache
def line_kinds() -> tuple[LineKind, ...]:
    """All kinds; of several that a line could be, the first one counts."""
    # It is part of the package, and no file of a user.
    body = pkgutil.get_data(__package__, "line_kinds.toml") or b""
    table = tomllib.loads(body.decode("utf-8"))
    return tuple(
        LineKind(
            **{
                **row,
                "marks": tuple(row["marks"]),
                "pattern": re.compile(row["pattern"]) if "pattern" in row else None,
            }
        )
        for row in table["kind"]
    )


def marks_pattern() -> bytes:
    """Finds every line that `said_by` may know; in the syntax that Python and RE2 share."""
    marks = dict.fromkeys(mark for kind in line_kinds() for mark in kind.marks)
    return b"|".join(re.escape(mark).replace("\\ ", " ").encode("ascii") for mark in marks)


def said_by(text: str) -> Said | None:
    """What a line says; None if it is of no kind."""
    for mark, kind in _marks():
        if mark in text and not (kind.is_doubtful and is_harmless(text)):
            if kind.pattern is None:
                return Said(kind, kind.code)
            found = kind.pattern.search(text)
            if found is not None:
                return _said(kind, {name: value for name, value in found.groupdict().items() if value})
    return None


@cache
def _marks() -> tuple[tuple[str, LineKind], ...]:
    return tuple((mark, kind) for kind in line_kinds() for mark in kind.marks)


def _said(kind: LineKind, groups: Mapping[str, str]) -> Said:
    def either(name: str) -> str | None:
        return groups.get(name) or groups.get(f"{name}2") or groups.get(f"{name}3")

    one, local, signal = either("rank"), either("local"), groups.get("signal")
    return Said(
        kind,
        kind.code or either("code") or (f"-{signal}" if signal else None),
        numbers(either("ranks") or one or ""),
        numbers(groups.get("tasks", "")),
        either("node"),
        either("device"),
        groups.get("pid"),
        None if local is None else int(local),
    )


#: More numbers in one line are no list of ranks.
MAX_NUMBERS = 10_000


def numbers(text: str) -> tuple[int, ...]:
    """Numbers of a list such as ``1, 3-5``, ascending; of long runs the first `MAX_NUMBERS`."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            begin = int(first)
            end = int(last) if last.isdigit() else begin
            found.update(range(begin, min(end, begin + MAX_NUMBERS) + 1))
    return tuple(sorted(found)[:MAX_NUMBERS])
