"""Limits on the lists and texts of an answer, whatever names and ranks its window has.

An answer is stored, sent and read by people. So every list whose length follows from the window has a limit,
and `Diagnosis.left_out` counts what is missing from it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from rca.diagnosis.result import Diagnosis

MAX_STRAGGLERS = 64
#: Most entries of the lists that follow from a window.
MAX_ENTRIES = {
    "stragglers": MAX_STRAGGLERS,
    "causes": 64,
    "findings": 32,
    "actions": 64,
    "quality.notes": 50,
    "quality.unknown_metrics": 100,
}
#: Fields that may hold texts and places of the window.
_LIMITED = ("stragglers", "causes", "findings", "quality", "next_check")
#: Longest text, such as a note or the name of a metric, in characters.
MAX_TEXT_LENGTH = 400
#: Characters of all ranks and nodes of an answer together. All 10,240 ranks of a job take 60,000.
PLACE_CHARACTERS = 500_000
#: Every list of ranks or nodes keeps its first few.
MIN_PLACES = 8
#: Characters of a node in JSON besides its name; of a rank it is the comma.
_QUOTED = 3


def within_limits(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with lists and texts within the limits; the same object if they are."""
    limits = _Limits(dict(diagnosis.left_out))
    held = {name: getattr(diagnosis, name) for name in _LIMITED}
    kept = {name: limits.kept(value, name) for name, value in held.items()}
    kept["actions"] = limits.first(diagnosis.actions, "actions")
    changed = {name: value for name, value in kept.items() if value is not getattr(diagnosis, name)}
    return diagnosis.model_copy(update=changed | {"left_out": limits.left_out}) if changed else diagnosis


class _Limits:
    """What is left out of an answer, and the characters that are left for its places."""

    def __init__(self, left_out: dict[str, int]) -> None:
        self.left_out = left_out
        self._characters = PLACE_CHARACTERS

    def kept(self, value: Any, path: str) -> Any:
        """A part of the answer within the limits; the same object if it is."""
        if isinstance(value, str):
            return value if len(value) <= MAX_TEXT_LENGTH else value[: MAX_TEXT_LENGTH - 1] + "…"
        if isinstance(value, BaseModel):
            fields = ((name, held, self.kept(held, f"{path}.{name}")) for name, held in value)
            changed = {name: kept for name, held, kept in fields if kept is not held}
            return value.model_copy(update=changed) if changed else value
        if not isinstance(value, list):
            return value
        entries = self.first(value, path)
        found = [self.kept(each, f"{path}[{position}]") for position, each in enumerate(entries)]
        if path.endswith((".ranks", ".nodes")):
            found = self._fitting(found, path)
        same = len(found) == len(value) and all(map(lambda one, other: one is other, found, value))
        return value if same else found

    def first(self, values: list[Any], path: str, most: int | None = None) -> list[Any]:
        """The first entries of a list; the others are counted under its path."""
        most = MAX_ENTRIES.get(path, len(values)) if most is None else most
        if len(values) <= most:
            return values
        self.left_out[path] = self.left_out.get(path, 0) + len(values) - most
        return values[:most]

    def _fitting(self, places: list[Any], path: str) -> list[Any]:
        """The first ranks or nodes, for which there is room."""
        used = n_fit = 0
        for n_fit, place in enumerate(places):
            size = len(place) + _QUOTED if isinstance(place, str) else len(str(place)) + 1
            if n_fit >= MIN_PLACES and used + size > self._characters:
                break
            used += size
        else:
            n_fit = len(places)
        self._characters = max(self._characters - used, 0)
        return self.first(places, path, n_fit)
