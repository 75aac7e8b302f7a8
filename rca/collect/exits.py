"""Ends of training processes: exit codes and texts of errors, and which ends follow from another one."""

from __future__ import annotations

import re
from typing import Final

#: Exit codes after SIGTERM or SIGINT, as Python, shells and launchers write them.
TERMINATED_CODES: Final = frozenset({"-15", "15", "143", "SIGTERM", "-2", "2", "130", "SIGINT"})
#: Messages of a process that lost its peer: of NCCL, gloo, MPI, gRPC, TCPStore and sockets.
LOST_PEER: Final = re.compile(
    r"remote (process|peer|rank|server shutdown)|(closed|reset|aborted) by (remote )?peer|broken pipe"
    r"|ncclRemoteError|connection (was )?(likely )?(closed|refused)|peer (exited|died|failure|disconnected)"
    r"|socket closed|failed to recv, got 0 bytes|completion from peer with status"
    r"|communicator was aborted",
    re.IGNORECASE,
)
#: Messages of a process that waited for a peer in vain: the peer may hang.
TIMED_OUT: Final = re.compile(r"tim(ed?|ing) ?out", re.IGNORECASE)
#: Messages of a process that a person or a launcher stopped.
SIGNALLED: Final = re.compile("SIGTERM|KeyboardInterrupt", re.IGNORECASE)

#: What `rca.collect.stop` records without an error, and what it adds if a step was not finished.
STOPPED: Final = "the training code stopped the collector"
WITHIN_STEP: Final = ", within a step"

#: Exceptions that end a loop or a generator.
_NO_ERRORS: Final = (StopIteration, StopAsyncIteration, GeneratorExit)
#: Exit code of a process that a person interrupts, as shells write it.
_INTERRUPTED: Final = "130"
#: Errors of a chain that a text names, and its length.
MAX_ERRORS: Final = 4
MAX_TEXT: Final = 300


def lost_peer(message: str | None) -> bool:
    """Whether a message says that a process lost its peer."""
    return LOST_PEER.search(message or "") is not None


def reacted(message: str | None) -> bool:
    """Whether a message says that a process ended because of another one."""
    return lost_peer(message) or SIGNALLED.search(message or "") is not None


def exit_code(error: BaseException | None) -> str:
    """The exit code of a process that this exception ends; "0" for one that is no error."""
    if error is None or isinstance(error, _NO_ERRORS):
        return "0"
    if isinstance(error, SystemExit):
        # Python ends with 1 if the code is a text.
        return "0" if error.code is None else str(int(error.code)) if isinstance(error.code, int) else "1"
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else "1"


def error_text(error: BaseException) -> str:
    """Type and text of an exception, and of those that it came from: these tell whether a peer was lost."""
    parts: list[str] = []
    each: BaseException | None = error
    while each is not None and len(parts) < MAX_ERRORS:
        try:
            text = " ".join(str(each).split())
        except Exception:  # Its own code may fail.
            text = "without a text"
        parts.append(f"{type(each).__name__}: {text}"[: MAX_TEXT // 2])
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return "; from ".join(parts)[:MAX_TEXT]
