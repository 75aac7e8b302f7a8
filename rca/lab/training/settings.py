"""LightGBM's settings per head: which may be tuned, their bounds, and the settings file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, cast

import orjson

from rca.classify.classifier import HEADS
from rca.errors import InvalidInput, SourceError
from rca.files import read_file, replace_file

FORMAT = 1

#: Head -> LightGBM parameter -> value, on top of `rca.lab.training.heads.PARAMETERS`.
Settings = Mapping[str, Mapping[str, float]]


class Bounds(NamedTuple):
    """Bounds of a setting, both inclusive; `decades` samples it on a logarithmic scale."""

    low: float
    high: float
    whole: bool
    decades: bool


#: The settings of a settings file: they trade bias for variance. The number of rounds, which decides the time
#: of a diagnosis, and the settings for reproducible fits cannot be tuned.
TUNABLE: dict[str, Bounds] = {
    "learning_rate": Bounds(0.02, 0.2, whole=False, decades=True),
    "num_leaves": Bounds(4, 63, whole=True, decades=True),
    "min_data_in_leaf": Bounds(5, 120, whole=True, decades=True),
    "feature_fraction": Bounds(0.2, 1.0, whole=False, decades=False),
    "bagging_fraction": Bounds(0.5, 1.0, whole=False, decades=False),
    "lambda_l2": Bounds(0.1, 100.0, whole=False, decades=True),
}


def read_settings(path: Path) -> dict[str, dict[str, float]]:
    """Read and check a settings file.

    Raises
    ------
    SourceError
        If there is no such file.
    InvalidInput
        If it is not a settings file of format 1, or has an unknown head, an unknown setting or a bad value.
    """
    try:
        document = orjson.loads(read_file(path))
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{path}: is not JSON: {error}") from None
    heads = document.get("heads") if isinstance(document, dict) else None
    if not isinstance(heads, dict) or document.get("format") != FORMAT:
        raise InvalidInput(f"{path}: is not a settings file of format {FORMAT}", hint="`rca tune` writes one")
    return {name: _checked(path, name, values) for name, values in heads.items()}


def write_settings(path: Path, settings: Settings) -> None:
    """Write a file that `read_settings` reads; heads without settings of their own are left out."""
    document = {"format": FORMAT, "heads": {name: dict(held) for name, held in settings.items() if held}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
    except OSError as error:
        raise SourceError(f"cannot write {path}: {error.strerror or error}") from error


def _checked(path: Path, head: str, values: object) -> dict[str, float]:
    if head not in HEADS:
        raise InvalidInput(f"{path}: there is no head {head!r}", hint=f"heads: {', '.join(HEADS)}")
    if not isinstance(values, dict):
        raise InvalidInput(f"{path}: {head}: settings are an object of numbers by name")
    for name, value in values.items():
        if name not in TUNABLE:
            known = ", ".join(TUNABLE)
            raise InvalidInput(f"{path}: {head}: {name!r} cannot be set", hint=f"settings: {known}")
        if not _within(value, TUNABLE[name]):
            kind = "a whole number" if TUNABLE[name].whole else "a number"
            raise InvalidInput(
                f"{path}: {head}: {name} is {value!r}",
                hint=f"{kind} from {TUNABLE[name].low:g} to {TUNABLE[name].high:g}",
            )
    return cast("dict[str, float]", values)


def _within(value: object, bounds: Bounds) -> bool:
    # In Python a bool is an int; in a settings file it is a mistake.
    number = isinstance(value, int) or (isinstance(value, float) and not bounds.whole)
    return number and not isinstance(value, bool) and bounds.low <= cast("float", value) <= bounds.high
