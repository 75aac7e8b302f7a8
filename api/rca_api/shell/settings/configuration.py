"""The settings as ``rca serve --print-config`` and ``docs/reference/settings.md`` show them."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import ByteSize, TypeAdapter
from pydantic.fields import FieldInfo

from rca_api.shell.observability.logs import hidden
from rca_api.shell.settings.environment import read, variables
from rca_api.shell.settings.settings import Settings

Form = Literal["env", "json"]


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
