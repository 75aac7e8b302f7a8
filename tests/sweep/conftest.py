"""The command line, as in the tests of the commands."""

from tests.cli.conftest import rca_command

__all__ = ["rca_command"]
