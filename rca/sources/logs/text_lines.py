"""Lines of job logs, with the labels and times that launchers put before them."""

from __future__ import annotations

import os
import re
import zlib
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from rca.errors import InvalidInput, SourceError
from rca.sources.logs.line_search import MAX_LINE_LENGTH, matching_lines

#: A text may have one odd character in so many: progress bars and broken encodings.
_TEXT_PER_ODD = 50
_ODD = re.compile("[\x00-\x07\x0e-\x1a\x1c-\x1f\ufffd]")
_GZIP = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: Labels of a line that name the rank: of PyTorch 2.2 and later, of its log handlers, and of Ray workers.
_RANK = re.compile(r"\[rank(\d{1,6})\]|\[rank=(\d{1,6})\]")
#: Labels that name a task, which may be a rank or a whole node: of ``srun --label`` and of torchrun.
_TASK = re.compile(r"^\s*(?:(\d{1,6}): |\[[A-Za-z_]+(\d{1,6})\]:)")
_RANK_IN_NAME = re.compile(r"(?:rank|task|worker|proc|log|stderr|stdout)[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d{1,6})$")
_DATE_AND_TIME = re.compile(
    r"\b(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)
_GLOG_TIME = re.compile(r"\b[IWEF](\d{3,4}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SYSLOG_TIME = re.compile(
    rf"\b({'|'.join(_MONTHS)}) {{1,2}}(\d{{1,2}}) (\d\d):(\d\d):(\d\d)(?: (\d{{4}})\b)?"
)
_DAY = 86_400.0


@dataclass(frozen=True)
class TextLine:
    """One line of a log. Labels and the time are looked for when they are asked for.

    Attributes
    ----------
    path : Path
        The file of the line.
    named : int or None
        Rank or task in the name of the file.
    written : float, Unix seconds
        When the file was last written.
    """

    text: str
    path: Path
    named: int | None
    written: float

    @property
    def rank(self) -> int | None:
        """From a label that can only be a rank."""
        found = _RANK.search(self.text)
        return None if found is None else int(found[1] or found[2])

    @property
    def task(self) -> int | None:
        """From a label that is a rank or a node, or from the file's name."""
        found = _TASK.match(self.text)
        return self.named if found is None else int(found[1] or found[2])

    @property
    def time(self) -> float:
        """Unix seconds; NaN if the line has none. Without a zone it is taken for UTC."""
        return time_of(self.text, self.written)


def lines_of(path: Path, wanted: re.Pattern[bytes]) -> Iterator[TextLine]:
    """The lines in which `wanted` occurs, in their order.

    Raises
    ------
    SourceError, InvalidInput
        If the file cannot be read, or its compressed data is damaged.
    """
    named = task_in_name(path)
    written = _modified(path)
    for raw in matching_lines(path, wanted):
        text = raw.decode("utf-8", "replace")
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        yield TextLine(text.rstrip(), path, named, written)


def mixed(one: Path, other: Path, what: str) -> InvalidInput:
    """The error of two files that both hold `what`, which only one file of a job can hold."""
    names = one.name, other.name
    if one.name == other.name:
        common = os.path.commonpath([one, other])
        names = os.path.relpath(one, common), os.path.relpath(other, common)
    return InvalidInput(
        f"{names[0]} and {names[1]} both hold {what}", hint="give the logs of one job and one attempt"
    )


def text_of(head: bytes) -> str | None:
    """The first bytes of a file as text, unpacked; None if they are binary or begin a window's encoding."""
    head = unpacked(head)
    # A character may be cut at the end.
    text = head.decode("utf-8", "replace")
    odd = _ODD.findall(text[:-1])
    is_encoding = text.lstrip("\ufeff \r\n\t")[:1] == "{" or text.startswith("--")
    return None if is_encoding or len(odd) * _TEXT_PER_ODD > len(text) else text


def unpacked(head: bytes) -> bytes:
    """The first bytes of a file, decompressed if they are gzip; damaged gzip stays as it is."""
    if head[:2] != _GZIP:
        return head
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, MAX_LINE_LENGTH)
    except zlib.error:
        return head


def task_in_name(path: Path) -> int | None:
    """The rank or task in the name of a file, such as ``rank3.log``; None without one."""
    found = _RANK_IN_NAME.search(path.name)
    if found is None and path.name.startswith("std"):
        # torchrun: attempt_0/3/stderr.log.
        found = _NUMBER.match(path.parent.name)
    return None if found is None else int(found[1])


def time_of(text: str, written: float) -> float:
    """The first time in a line, Unix seconds; NaN without one.

    Parameters
    ----------
    written : float, Unix seconds
        When the file was last written. Many logs leave out the year: the line is not much newer than this.
    """
    whole = _DATE_AND_TIME.search(text)
    if whole is not None:
        year, month, day, hour, minute, second = (int(whole[part]) for part in range(1, 7))
        return _seconds(year, month, day, hour, minute, second, whole[7]) - _zone(whole[8])
    glog = _GLOG_TIME.search(text)
    if glog is not None:
        month, day = divmod(int(glog[1]), 100)
        return _without_year(written, month, day, int(glog[2]), int(glog[3]), int(glog[4]), glog[5])
    syslog = _SYSLOG_TIME.search(text)
    if syslog is None:
        return np.nan
    month, day = _MONTHS.index(syslog[1]) + 1, int(syslog[2])
    hour, minute, second = int(syslog[3]), int(syslog[4]), int(syslog[5])
    if syslog[6]:
        return _seconds(int(syslog[6]), month, day, hour, minute, second, None)
    return _without_year(written, month, day, hour, minute, second, None)


def _without_year(
    written: float, month: int, day: int, hour: int, minute: int, second: int, fraction: str | None
) -> float:
    year = datetime.fromtimestamp(written, UTC).year
    for each in (year + 1, year, year - 1):
        found = _seconds(each, month, day, hour, minute, second, fraction)
        if found <= written + _DAY:
            return found
    return np.nan


def _seconds(
    year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: str | None
) -> float:
    """Unix seconds; NaN if there is no such day."""
    if not (1 <= month <= 12 and 1 <= day <= 31 and 1970 <= year < 5000):
        return np.nan
    return timegm((year, month, day, hour, minute, second)) + float(f"0.{fraction or 0}")


def _zone(text: str | None) -> float:
    """Seconds that a zone is ahead of UTC."""
    if text is None or text == "Z":
        return 0.0
    hours, minutes = int(text[1:3]), int(text[-2:])
    return (-1.0 if text[0] == "-" else 1.0) * (3600.0 * hours + 60.0 * minutes)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
