"""Running `ip` and `tc`: the only place that starts foreign programs."""

from __future__ import annotations

import shutil
import subprocess

from rca.errors import RcaError

TIMEOUT_SECONDS = 20.0
_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"


class ToolFailed(RcaError):
    """A program the testbed relies on is missing or refused."""

    code = "testbed-tool"


def run_tool(name: str, *arguments: str) -> str:
    """Run a program and return what it printed.

    Raises
    ------
    ToolFailed
        If it is not installed, ended with an error or did not end in time.
    """
    program = shutil.which(name, path=_PLACES)
    if program is None:
        raise ToolFailed(f"{name} is not installed", hint="Debian: the package iproute2")
    try:
        done = subprocess.run(  # noqa: S603 (fixed programs, no shell, arguments are ours)
            [program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"{name} {' '.join(arguments)}: not done in {TIMEOUT_SECONDS:g} s") from error
    if done.returncode:
        raise ToolFailed(f"{name} {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def succeeds(name: str, *arguments: str) -> bool:
    """Whether a program can be run with these arguments."""
    try:
        run_tool(name, *arguments)
    except ToolFailed:
        return False
    return True
