"""Notes on parts of a trace, put together as if the whole had been read at once."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"((?<=\()\d+(?=\))|^\d+(?= )|(?<=: )\d+(?= rows))|((?<=the first is row )\d+)")
"""Numbers in notes on rows: counts at their start, after a colon or in brackets; and the first row."""


class NoteSums:
    """Notes whose counts add up, and whose first rows are the first of all."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {}

    def add(self, notes: Iterable[str], times: int = 1) -> None:
        """Add notes on one part, or on several that are alike."""
        for note in notes:
            key = _NUMBER.sub("\0", note)
            held = self._numbers.get(key)
            numbers = []
            for k, match in enumerate(_NUMBER.finditer(note)):
                number = int(match[0])
                if match[1]:
                    numbers.append(number * times + (held[k] if held else 0))
                else:
                    numbers.append(min(number, held[k]) if held else number)
            self._numbers[key] = numbers

    def merged(self) -> list[str]:
        """One note each, in the order they were first met."""
        notes = []
        for key, numbers in self._numbers.items():
            texts = [*map(str, numbers), ""]
            notes.append("".join(part + text for part, text in zip(key.split("\0"), texts, strict=True)))
        return notes
