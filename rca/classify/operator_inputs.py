"""Numbers per name that operators give about their cluster, as a mapping or a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import orjson

from rca.errors import InvalidInput, SourceError


def read_numbers(path: str | PathLike[str], example: str) -> dict[str, Any]:
    """Read a JSON object of name to number; the numbers are not checked.

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        If it holds anything else than an object; the message shows `example`.
    """
    try:
        document = orjson.loads(Path(path).read_bytes())
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{path}: is not JSON: {error.msg}") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"{path}: expected an object of name to number, as in {example}")
    return document


def check_positive(numbers: Mapping[str, Any], what: str, hint: str) -> None:
    """Refuse entries that are not finite positive numbers.

    Raises
    ------
    InvalidInput
        Naming the first entry that is not, as one of `what`.
    """
    for name, value in numbers.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not isfinite(value)
            or value <= 0
        ):
            raise InvalidInput(f"{what}: {name} has {value!r}, expected a positive number", hint=hint)
