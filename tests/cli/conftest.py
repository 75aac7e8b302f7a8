"""The command line run in this process, and the malformed windows it shares with the service's tests."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rca.cli import run as run_command_line

# `bad_windows` lies with the service's tests: both surfaces must refuse the same things.
sys.path.append(str(Path(__file__).parents[1] / "api"))


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class _Stdin(io.TextIOWrapper):
    """Standard input with bytes behind it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))


@pytest.fixture
def rca_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run ``rca`` with arguments and, if given, bytes on standard input."""

    def run(*arguments: str | Path, stdin: bytes | None = None) -> Ran:
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", _Stdin(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            run_command_line([str(argument) for argument in arguments])
        told = capsys.readouterr()
        code = left.value.code
        return Ran(code if isinstance(code, int) else 0, told.out, told.err)

    return run
