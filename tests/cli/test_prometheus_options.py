"""The options of Prometheus are the same for every command that has them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
import typer

from rca.commands.prometheus_options import PrometheusOptions
from tests.for_each import for_each

#: Command, and the fields that its windows do not have.
COMMANDS = (
    ("diagnose", frozenset()),
    ("plan", frozenset()),
    ("runbook", frozenset()),
    ("jobs", frozenset({"job", "start", "end"})),
    ("sweep", frozenset({"job", "since", "start", "end"})),
)


def options_of(name: str) -> dict[str, click.Option]:
    module: Any = import_module(f"rca.commands.{name}")
    function = module.run_command if name == "sweep" else module.command
    app = typer.Typer()
    app.command()(function)
    return {each.name: each for each in typer.main.get_command(app).params if each.name is not None}  # type: ignore[misc]


@for_each(("name", "without"), COMMANDS)
def test_a_command_has_the_common_options_with_the_common_help(name: str, without: frozenset[str]) -> None:
    reference, found = options_of("diagnose"), options_of(name)
    fields = {"prometheus" if each == "url" else each for each in PrometheusOptions.__dataclass_fields__}
    assert {each for each in fields if each in found} == fields - without
    for each in fields - without:
        assert (found[each].help, found[each].opts) == (reference[each].help, reference[each].opts)
