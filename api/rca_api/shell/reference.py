"""The pages of ``docs/reference`` that are written from the code.

``python -m rca_api.shell.reference docs/reference`` writes them; a test compares them with the code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from fastapi.routing import iter_route_contexts
from prometheus_client.metrics import MetricWrapperBase
from pydantic.json_schema import GenerateJsonSchema
from starlette.routing import BaseRoute, Mount, Route
from typer.core import TyperGroup

from rca.cli import app as command_line
from rca.sources.logs.line_kinds import line_kinds
from rca.sources.registry import SOURCES
from rca.window import catalogue
from rca.window.causes import CAUSES
from rca_api.diagnoses.schemas import TelemetryWindow
from rca_api.shell.app import create_app
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.security.access import required
from rca_api.shell.security.principal import Scope
from rca_api.shell.settings import environment
from rca_api.shell.settings.settings import Settings

#: First line of every page that is written from the code.
GENERATED = "<!-- Written by `python -m rca_api.shell.reference docs/reference`: change the code instead. -->"
#: Methods in the order in which a page lists them.
_METHODS = ("post", "get", "patch", "delete")
#: Title of the operations that need no key.
_NO_SCOPE = "Without a key"


def causes() -> str:
    """List the causes: who owns them, what shows them, what to check next."""
    rows = (
        (
            f"`{cause.id}`",
            cause.meaning,
            cause.type,
            cause.owner,
            _codes(cause.phases),
            _codes(cause.resources),
            cause.next_check,
        )
        for cause in CAUSES.values()
    )
    return _page(
        "Causes",
        "The catalogue in `rca/window/causes.py`. Labels, answers and runbooks share its ids.",
        _table(("cause", "meaning", "type", "owner", "phases", "resources", "next check"), rows),
    )


def signals() -> str:
    """List the exporter metrics, by the channel that they feed."""
    return _page(
        "Signals",
        "Exporter metrics that a diagnosis understands. `rca signals PATTERN` searches them.",
        catalogue.to_markdown(),
    )


def sources() -> str:
    """List what can be diagnosed in place of a window."""
    rows = ((f"`{each.name}`", each.title, each.tells, each.lacks) for each in SOURCES)
    return _page(
        "Sources",
        "Files that `rca diagnose` reads in place of a window. `rca sources` lists them; content decides.",
        _table(("source", "files", "can tell", "cannot tell"), rows)
        + "\n\n## Lines of logs\n\nEach is an event of the rank, node or device that it names.\n\n"
        + _table(
            ("line", "says", "event", "printed by"),
            ((f"`{each.name}`", each.says, f"`{each.event}`", each.source) for each in line_kinds()),
        ),
    )


def settings() -> str:
    """List the settings of the service."""
    return _page(
        "Settings",
        "Environment variables. `rca serve --print-config` shows what is set; passwords are hidden.",
        environment.table(),
    )


def metrics() -> str:
    """List the series at ``/metrics``."""
    with TemporaryDirectory() as folder:
        held: Metrics = create_app(Settings(data_dir=Path(folder))).state.parts.metrics
        labels = _labels_of(held)
        families = sorted(held.registry.collect(), key=lambda family: family.name)
    rows = (
        (
            f"`{family.name}_total`" if family.type == "counter" else f"`{family.name}`",
            family.type,
            _codes(labels.get(family.name) or _labels_of_samples(family.samples)),
            family.documentation,
        )
        for family in families
        if family.name.startswith("rca_")
    )
    return _page(
        "Metrics",
        "Prometheus series of the service at `/metrics`. No label is ever a job, a node or a caller.",
        _table(("series", "type", "labels", "meaning"), rows),
    )


def rest() -> str:
    """List the operations of the REST API and the webhooks."""
    with TemporaryDirectory() as folder:
        document = create_app(Settings(data_dir=Path(folder))).openapi()
    sections = []
    for tag in document["tags"]:
        rows = [
            (f"`{method.upper()} {path}`", operation["summary"], ", ".join(_answers(operation)))
            for path, operations in document["paths"].items()
            for method, operation in sorted(operations.items(), key=lambda item: _METHODS.index(item[0]))
            if tag["name"] in operation["tags"]
        ]
        sections += [f"## {tag['name'].capitalize()}", "", tag["description"], ""]
        sections += [_table(("operation", "what it does", "answers"), rows), ""]
    events = "\n".join(f"- `{name}`" for name in document["webhooks"])
    sections += ["## Events sent to webhooks", "", events]
    return _page(
        "REST API",
        "All operations. `api/openapi.json` and `/docs` of a running service have every field. Operations "
        "under `/v1` may also answer 401, 403, 422, 429, 500 and 503, as `application/problem+json`.",
        "\n".join(sections),
    )


def scopes() -> str:
    """List the operations that each scope allows, and those that need no key."""
    with TemporaryDirectory() as folder:
        routes = [
            each.original_route
            for each in iter_route_contexts(create_app(Settings(data_dir=Path(folder))).routes)
        ]
    allowed: dict[str, list[str]] = {name: [] for name in (*Scope, _NO_SCOPE)}
    for route in routes:
        for name in required(route) or (_NO_SCOPE,):
            allowed[name] += _operations(route)
    sections = (
        "\n".join((f"## {name}", "", *(f"- {_codes([each])}" for each in sorted(held, key=_by_path))))
        for name, held in allowed.items()
    )
    return _page(
        "Scopes",
        "What a key with one scope may do. `admin` includes all other scopes. A 403 names the scope that is "
        "missing. `GET /metrics` needs `read` while `RCA_PUBLIC_METRICS` is off.",
        "\n\n".join(sections),
    )


def commands() -> str:
    """List the commands with their options."""
    root = typer.main.get_command(command_line)
    sections = [part for name, command in _leaves(root, "rca") for part in _section(name, command)]
    return _page(
        "Command line",
        "Every command with its options. `rca COMMAND --help` adds examples. "
        "[Exit codes](exit-codes.md) have a page of their own.",
        "\n".join(sections),
    )


def window_schema() -> str:
    """JSON Schema of the JSON encoding of a window."""
    described = TelemetryWindow.model_json_schema()
    # It is for programs that write windows: the examples stand in the documentation.
    described.pop("examples")
    return json.dumps({"$schema": GenerateJsonSchema.schema_dialect, **described}, indent=2) + "\n"


#: File name in ``docs/reference`` -> what writes it.
PAGES: Mapping[str, Callable[[], str]] = {
    "causes.md": causes,
    "cli.md": commands,
    "metrics.md": metrics,
    "rest.md": rest,
    "scopes.md": scopes,
    "settings.md": settings,
    "signals.md": signals,
    "sources.md": sources,
    "window.schema.json": window_schema,
}


def write(folder: Path) -> None:
    """Write all pages.

    Parameters
    ----------
    folder : Path
        Mostly ``docs/reference``.
    """
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


def _page(title: str, about: str, body: str) -> str:
    return f"{GENERATED}\n# {title}\n\n{about}\n\n{body.rstrip()}\n"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = tuple(header)
    lines = [columns, ("---",) * len(columns), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _labels_of(held: Metrics) -> dict[str, tuple[str, ...]]:
    """Label names by metric, also of those that have no series yet."""
    found: dict[str, tuple[str, ...]] = {}
    for value in vars(held).values():
        for metric in value.values() if isinstance(value, dict) else (value,):
            if isinstance(metric, MetricWrapperBase):
                for family in metric.describe():
                    found[family.name] = tuple(getattr(metric, "_labelnames", ()))
    return found


def _labels_of_samples(samples: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(label for sample in samples for label in sample.labels if label != "le"))


def _answers(operation: Mapping[str, Any]) -> Iterator[str]:
    """Status codes that are not those of every operation."""
    common = {"401", "403", "422", "429", "500", "503"}
    return (status for status in operation["responses"] if status not in common)


def _operations(route: BaseRoute) -> Iterator[str]:
    """Methods with the address of a route; a folder of files is one address."""
    if isinstance(route, Mount):
        yield f"GET {route.path}/..."
    elif isinstance(route, Route):
        yield from (f"{method} {route.path_format}" for method in (route.methods or set()) - {"HEAD"})


def _by_path(operation: str) -> tuple[str, int]:
    method, _, path = operation.partition(" ")
    return path, _METHODS.index(method.lower())


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands that do something, in the order of the help text."""
    if not isinstance(command, TyperGroup):
        yield name, command
        return
    context = command.context_class(command)
    for child in command.list_commands(context):
        yield from _leaves(command.get_command(context, child), f"{name} {child}")


def _section(name: str, command: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {name}\n"
    yield f"`{name} {usage}`\n"
    about = (command.help or "").split("\f")[0]
    yield f"{_cell(about)}\n"
    records = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    if records:
        yield (
            _table(("argument or option", "meaning"), ((f"`{option}`", text) for option, text in records))
            + "\n"
        )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
