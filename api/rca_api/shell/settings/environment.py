"""Reads the settings from the environment, and names the variables that are wrong."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import Any

import structlog
from pydantic import AliasChoices, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rca.errors import InvalidInput
from rca_api.shell.settings.settings import Settings

PREFIX = str(Settings.model_config["env_prefix"])
#: Variables of the library's commands, its client, `compose.yaml` and tests.
_OTHER_VARIABLES = frozenset(
    {
        *("RCA_API_KEY", "RCA_NODE_ODDS", "RCA_PORT", "RCA_WHAT_IF_TRACES"),
        *(
            "RCA_COLLECT",
            "RCA_COLLECT_ATTEMPT",
            "RCA_COLLECT_DIR",
            "RCA_COLLECT_GPU",
            "RCA_COLLECT_JOB_ID",
            "RCA_COLLECT_NODE",
        ),
        *("RCA_PROMETHEUS_URL", "RCA_PROMETHEUS_TOKEN", "RCA_PROMETHEUS_USER", "RCA_PROMETHEUS_PASSWORD"),
    }
)
_TEST_PREFIX = "RCA_TEST_"
_SIMILAR_NAME = 0.8
_log = structlog.stdlib.get_logger("rca_api")


def read(**given: Any) -> Settings:
    """Read the settings; `given` ones come before the environment's.

    Raises
    ------
    InvalidInput
        Names each invalid variable, without its value: it may hold a password.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        # Not chained: the first error holds the values.
        wrong = [_described(each["loc"], _expected(each)) for each in error.errors(include_input=False)]
        raise InvalidInput("; ".join(wrong)) from None


def unknown() -> list[str]:
    """List variables that look like settings and are none, with the closest known name.

    They are no error: a setting of a newer version must not keep an older one from starting.
    """
    known = {each for name, field in Settings.model_fields.items() for each in variables(name, field)}
    strange = sorted(
        name
        for name in os.environ
        if name.upper().startswith(PREFIX)
        and name.upper() not in known | _OTHER_VARIABLES
        and not name.startswith(_TEST_PREFIX)
    )
    return [f"{name} is not a setting of this version{_meant(name, known)}" for name in strange]


def warn_of_unknown() -> None:
    """Log the variables that `unknown` lists."""
    for reason in unknown():
        _log.warning("a variable has no effect", reason=reason)


def variables(name: str, field: FieldInfo) -> list[str]:
    """Environment variables a field is read from; the first one is its own."""
    if isinstance(field.validation_alias, AliasChoices):
        return [str(choice) for choice in field.validation_alias.choices]
    return [f"{PREFIX}{name}".upper()]


def variable_of(name: str) -> str:
    """Environment variable that a field is read from first."""
    return variables(name, Settings.model_fields[name])[0]


def _described(place: Any, message: str) -> str:
    name = str(next(iter(place), ""))
    field = Settings.model_fields.get(name)
    message = message.removeprefix("Value error, ")
    # An alias is a variable itself.
    variable = name if field is None else variables(name, field)[0]
    return f"{variable}: {message}"


def _expected(error: ErrorDetails) -> str:
    # The message shows a part of the value.
    return "needs a size such as 64MiB" if error["type"].startswith("byte_size") else error["msg"]


def _meant(name: str, known: set[str]) -> str:
    close = get_close_matches(name.upper(), known, 1, _SIMILAR_NAME)
    return f"; did you mean {close[0]}?" if close else ""
