"""Runs the tools of a cluster, such as kubectl and scontrol."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Final

from rca.errors import SourceError, cut

#: Time limit of one command, seconds. A tool that waits for more is not waited for.
TOOL_SECONDS: Final = 60.0


class ToolError(SourceError):
    """A tool of the cluster is missing, refuses or does not answer."""

    code = "tool-failed"


def output(command: Sequence[str], content: str | None = None) -> str:
    """Standard output of a command.

    Parameters
    ----------
    content : str, optional
        For its standard input.

    Raises
    ------
    ToolError
        If it is not installed, fails or takes too long. The message has the last line of its errors.
    """
    try:
        done = subprocess.run(  # noqa: S603  (made of checked names, without a shell)
            command,
            input=content,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TOOL_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise ToolError(f"{command[0]} is not installed", hint="run the agent where it is") from None
    except OSError as error:
        raise ToolError(f"{command[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ToolError(f"{command[0]} gives no answer in {TOOL_SECONDS:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "without a message").splitlines()[-1]
        raise ToolError(f"{' '.join(command[:3])} failed: {cut(last)}")
    return done.stdout
