"""The `rca` command line: finds and runs a command, and turns errors into messages.

Exit codes: 0 done (for `diagnose`: healthy), 1 something is wrong with this installation, 2 bad input
or arguments, 3 the promotion gate refuses, 10 fail-slow, 20 fail-stop, 30 abstained, 130 interrupted,
141 the reader of a pipe left.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import wraps
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rca.commands import COMMANDS, SERVICE_COMMANDS
from rca.errors import RcaError
from rca.process import take_over
from rca.terminal import exit_code, fail, print_error

EXAMPLES = """
rca diagnose data/windows/cpu-contention-node          who is slow, why, what to do
rca diagnose window.json --format json | jq .causes    for a program
rca diagnose - < window.json                           from a pipe
rca serve                                              the same over HTTP on 127.0.0.1:8080
"""


def _kept(examples: str) -> str:
    """Format examples as an epilog whose lines are not filled (the backspace says so)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines())


def _write_errors_as_asked(command: Any) -> None:
    """Let a command, or each one of a group, write its errors as JSON if its `--format` is json."""
    for each in getattr(command, "commands", {}).values():
        _write_errors_as_asked(each)
    called = command.callback
    if called is None:
        return

    @wraps(called)
    def call(**given: Any) -> Any:
        try:
            return called(**given)
        except RcaError as error:
            fail(error, as_json=given.get("format_") == "json")

    command.callback = call


class LazyCommands(TyperGroup):
    """A group that imports a command's module when the command is looked up, not before.

    ``rca diagnose`` in an alert hook must not wait for the imports of ``rca train``.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # The base class suggests close matches from these names; the values are never used.
        self.commands = dict.fromkeys((*COMMANDS, *SERVICE_COMMANDS))  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the command's module and build its command."""
        del ctx
        if cmd_name not in self.commands:
            return None
        # The library does not import its service; it only knows where the service's commands are.
        package = "rca_api" if cmd_name in SERVICE_COMMANDS else "rca"
        module = import_module(f"{package}.commands.{cmd_name.replace('-', '_')}")
        group: typer.Typer | None = getattr(module, "app", None)
        if group is None:
            group = typer.Typer(add_completion=False, rich_markup_mode=None)
            group.command(cmd_name, epilog=_kept(module.EXAMPLES))(module.command)
        built = typer.main.get_command(group)
        built.name = cmd_name
        _write_errors_as_asked(built)
        return built


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help: the examples keep their columns, and a pipe or a screen reader gets the same text.
    rich_markup_mode=None,
    epilog=_kept(EXAMPLES),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"straggler-rca {version('straggler-rca')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Say why a distributed training job is slow or has stopped: who, which cause, what to do."""


def main() -> None:
    """Be the `rca` program: the console script's entry point."""
    take_over()
    run()


def run(arguments: Sequence[str] | None = None) -> None:
    """Run one command line; always ends in `SystemExit`.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process if not given.
    """
    try:
        typer.main.get_command(app).main(args=arguments, prog_name="rca")
    except RcaError as error:
        print_error(error)
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
