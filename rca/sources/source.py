"""What a source of telemetry has to offer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rca.errors import InvalidInput
from rca.window.window import Window

#: So many first bytes of a file decide what it is.
HEAD_BYTES = 4096
#: ... of a JSON document that no source recognises by these.
LONG_HEAD_BYTES = 1 << 22


class NothingFound(InvalidInput):
    """A log has lines that its source looks for, but they show nothing; another source may know more."""


@dataclass(frozen=True)
class Source:
    """A kind of files that can be read into a window.

    Attributes
    ----------
    name : str
        In messages and on the command line.
    title : str
        What the files are, for people.
    tells, lacks : str
        What a diagnosis of such a window can say, and what it cannot.
    recognises : callable
        Whether a file is of this kind, from its first `HEAD_BYTES` bytes and its name.
    read : callable
        Reads files of one job and moment into a window; the second argument is the job's id.
    marks : re.Pattern of bytes or None
        For logs, which have other text before the lines of interest: a file is of this kind if such a line
        occurs anywhere in it.
    late_marks : re.Pattern of bytes or None
        For JSON documents with long members before those that tell their kind: a file is of this kind if this
        occurs in its first `LONG_HEAD_BYTES` bytes, unpacked.
    join : callable or None
        Adds a window of such files to the window of other files in the folder; the third argument is their
        names. Without it, a folder holds no others but logs.
    """

    name: str
    title: str
    tells: str
    lacks: str
    recognises: Callable[[bytes, str], bool]
    read: Callable[[Sequence[Path], str], Window]
    marks: re.Pattern[bytes] | None = None
    late_marks: re.Pattern[bytes] | None = None
    join: Callable[[Window, Window, str], Window] | None = None
