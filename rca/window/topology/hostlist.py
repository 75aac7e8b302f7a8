"""Slurm's hostlist expressions: ``host[1-8,10],login1``."""

from __future__ import annotations

import re
from itertools import product

from rca.errors import InvalidInput, cut

#: Hosts of one expression at most.
MAX_HOSTS = 262_144
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_PART = re.compile(r"\[([^\[\]]*)\]")


def expanded(expression: str) -> list[str]:
    """All hosts of an expression, in its order.

    Raises
    ------
    InvalidInput
        If it is no hostlist, or has more than `MAX_HOSTS` hosts.
    """
    found: list[str] = []
    for part in _split(expression):
        found += _hosts(part, expression, MAX_HOSTS - len(found))
    return found


def _split(expression: str) -> list[str]:
    """Parts between commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for position, letter in enumerate(expression):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise _invalid(expression, "its brackets do not match")
        if letter == "," and depth == 0:
            parts.append(expression[begin:position])
            begin = position + 1
    if depth:
        raise _invalid(expression, "its brackets do not match")
    return [part.strip() for part in (*parts, expression[begin:]) if part.strip()]


def _hosts(part: str, expression: str, most: int) -> list[str]:
    # Texts and brackets alternate.
    pieces = _PART.split(part)
    choices = [
        [piece] if position % 2 == 0 else _numbers(piece, expression, most)
        for position, piece in enumerate(pieces)
    ]
    total = 1
    for each in choices:
        total *= len(each)
    if total > most:
        raise _invalid(expression, f"it has more than {MAX_HOSTS:,} hosts")
    return ["".join(each) for each in product(*choices)]


def _numbers(text: str, expression: str, most: int) -> list[str]:
    """Numbers of ``01-04,7``; zeros in front give the width."""
    found: list[str] = []
    for each in text.split(","):
        held = _RANGE.fullmatch(each.strip())
        if held is None:
            raise _invalid(expression, f"{cut(each)!r} is no number or range")
        first, last = held[1], held[2] or held[1]
        if int(last) < int(first):
            raise _invalid(expression, f"{each} goes down")
        if int(last) - int(first) >= most - len(found):
            raise _invalid(expression, f"it has more than {MAX_HOSTS:,} hosts")
        width = len(first) if first.startswith("0") else 0
        found += [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    return found


def _invalid(expression: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"{cut(expression)!r} is no list of hosts: {reason}", hint="write it like host[1-8,10]"
    )
