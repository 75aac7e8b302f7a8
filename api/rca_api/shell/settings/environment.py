"""Reads the settings from the environment, names the variables that are wrong, and shows all.

They are shown by ``rca serve --print-config`` and in ``docs/reference/settings.md``.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import orjson
import structlog
from pydantic import AliasChoices, ByteSize, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rca.errors import InvalidInput
from rca_api.shell.observability.logs import hidden
from rca_api.shell.settings.settings import Settings

Form = Literal["env", "json"]
PREFIX = str(Settings.model_config["env_prefix"])
#: Variables of the library's commands, its client, `compose.yaml` and tests.
_OTHER_VARIABLES = frozenset(
    {
        *("RCA_API_KEY", "RCA_NODE_ODDS", "RCA_PORT", "RCA_SERVICE", "RCA_WHAT_IF_TRACES"),
        *(
            "RCA_COLLECT",
            "RCA_COLLECT_ATTEMPT",
            "RCA_COLLECT_DIR",
            "RCA_COLLECT_SERVICE",
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


@dataclass(frozen=True)
class Setting:
    """One variable.

    Attributes
    ----------
    value, default : str
        As in the environment, with passwords hidden. A default that depends on the machine is empty.
    source : {"environment", "default"}
    """

    variable: str
    description: str
    value: str
    default: str
    source: Literal["environment", "default"]


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


def settings_of(settings: Settings) -> list[Setting]:
    """Describe every setting, in the order of `Settings`."""
    return [
        Setting(
            variable=variables(name, field)[0],
            description=" ".join((field.description or "").split()),
            value=hidden(_text(getattr(settings, name))),
            default=_default(field),
            source="environment" if name in settings.model_fields_set else "default",
        )
        for name, field in Settings.model_fields.items()
    ]


def shown(form: Form) -> str:
    """Write the settings of this process.

    Parameters
    ----------
    form : {"env", "json"}
        A file of variables, in which defaults are comments; or a JSON array.
    """
    held = settings_of(read())
    if form == "json":
        return orjson.dumps([asdict(each) for each in held], option=orjson.OPT_INDENT_2).decode() + "\n"
    return "\n".join(_lines(each) for each in held)


def table() -> str:
    """Write all settings with their defaults as a Markdown table; the same on every machine."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        own, *others = variables(name, field)
        also = f" Also read from {', '.join(f'`{other}`' for other in others)}." if others else ""
        default = f"`{_default(field)}`" if _default(field) else ""
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        lines.append(f"| `{own}` | {default} | {meaning}{also} |")
    return "\n".join(lines)


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


def _lines(setting: Setting) -> str:
    sign = "" if setting.source == "environment" else "# "
    return f"# {setting.description}\n{sign}{setting.variable}={shlex.quote(setting.value)}\n"


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return ""
    return _text(field.default)


def _text(value: Any) -> str:
    """Write a value as it is set."""
    if value is None or value == Path():
        return ""
    if isinstance(value, ByteSize):
        # With a unit if that is exact.
        exact = value.human_readable().replace(".0", "")
        return exact if TypeAdapter(ByteSize).validate_python(exact) == value else str(int(value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return orjson.dumps(value).decode()
    return f"{value:g}" if isinstance(value, float) else str(value)
