"""Lines of job logs, with the labels and times that launchers put before them."""

from __future__ import annotations

import os
import re
import zlib
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rca.errors import InvalidInput, SourceError
from rca.sources.logs.file_names import writers_of_files
from rca.sources.logs.json_lines import are_json_lines, messages
from rca.sources.logs.line_labels import Writer, local_label, rank_label, task_label
from rca.sources.logs.line_search import MAX_LINE_LENGTH, UTF16, Flood, matching_lines

#: Of a longer line only its begin and what lies around the text of interest is read.
MAX_TEXT_LENGTH = 8192
#: A text may have one odd character in so many: progress bars and broken encodings.
_TEXT_PER_ODD = 50
_ODD = re.compile("[\x00-\x07\x0e-\x1a\x1c-\x1f\ufffd]")
_GZIP = b"\x1f\x8b"
_PART_HEADER = re.compile(r"^content-(?:type|disposition)\s*:", re.IGNORECASE | re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DATE_AND_TIME = re.compile(
    r"\b(\d{4})([-/])(\d\d)\2(\d\d)[T _-](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"(Z|[+-]\d\d:?\d\d| [+-](?:0\d|1[0-4])[0-5]\d(?!\d))?"
)
#: Month, day and year, as of Python's loggers of the Hugging Face libraries.
_AMERICAN_TIME = re.compile(r"\b(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)\b")
#: The begin of a line of PyTorch, with the time of glog.
_GLOG_BEGIN = re.compile(r"(?:\[rank\d{1,6}\]:? ?)?\[[IWEF](\d{3,4}) (\d\d):(\d\d):(\d\d(?:\.\d{1,9})?) ")
#: Month and day of glog, and of vLLM's loggers.
_GLOG_TIME = re.compile(
    r"\b(?:[IWEF]|(?:ERROR|WARNING|INFO) )(\d{3,4}|\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SYSLOG_TIME = re.compile(
    rf"\b({'|'.join(_MONTHS)}) {{1,2}}(\d{{1,2}}) (\d\d):(\d\d):(\d\d)(?: (\d{{4}})\b)?"
)
_DAY = 86_400.0
#: Lines without a time are this far apart, seconds: it keeps their order.
_LINE = 1e-6


class TextLine(NamedTuple):
    """One line of a log. Labels and the time are looked for when they are asked for.

    Attributes
    ----------
    path : Path
        The file of the line.
    file : Writer
        What the name and the folder of the file say about the process that wrote it.
    written : float, Unix seconds
        When the file was last written.
    """

    text: str
    path: Path
    file: Writer
    written: float

    @property
    def rank(self) -> int | None:
        """From a label that can only be a rank."""
        return rank_label(self.text)

    @property
    def task(self) -> int | None:
        """From a label that is a rank or a node, or from the file's name."""
        file = self.file
        label = task_label(self.text)
        if label is None:
            label = local_label(self.text)
        found = (label, file.rank, file.task, file.local)
        return next((each for each in found if each is not None), None)

    @property
    def label(self) -> int | None:
        """The number that ``srun --label`` puts before the line."""
        return task_label(self.text)

    @property
    def time(self) -> float:
        """Unix seconds; NaN if the line has none. Without a zone it is taken for UTC."""
        return dated(self.text, self.written)[0]


class Stamp(NamedTuple):
    """When a line was written, as far as its own text says.

    Attributes
    ----------
    time : float, Unix seconds
        Of the line, or of the last one before it in its file that has a time; NaN without one.
    after : int
        Lines since the one with the time; since the begin of the file without one.
    has_year : bool
        Without it, the year is a guess from when the file was written.
    """

    time: float
    after: int
    has_year: bool
    path: Path | None = None


@dataclass
class LineClock:
    """Times of lines of several logs, of which many have none, or no year.

    A line without a time comes right after the line before it. Without a year, the time is placed next to
    those that have one.
    """

    last: dict[Path, Stamp] = field(default_factory=dict)
    first: dict[Path, Stamp] = field(default_factory=dict)
    written: dict[Path, float] = field(default_factory=dict)
    latest: float = -np.inf

    def stamp(self, line: TextLine) -> Stamp:
        """The stamp of the next line of a file."""
        (time, has_year), before = dated(line.text, line.written), self.last.get(line.path)
        if before is None:
            self.written[line.path] = line.written
        if isfinite(time):
            stamp = Stamp(time, 0, has_year, line.path)
            if before is None or not isfinite(before.time):
                # `after` of the first one counts the lines before it.
                self.first[line.path] = stamp._replace(after=0 if before is None else before.after + 1)
            if has_year and time > self.latest:
                self.latest = time
        elif before is None:
            stamp = Stamp(np.nan, 0, False, line.path)
        else:
            stamp = before._replace(after=before.after + 1)
        self.last[line.path] = stamp
        return stamp

    def time_of(self, stamp: Stamp) -> float:
        """Unix seconds of a stamp, once all lines were read; NaN for one without a file."""
        if stamp.path is None:
            return stamp.time
        base, after = stamp, stamp.after
        if not np.isfinite(stamp.time) and stamp.path in self.first:
            base = self.first[stamp.path]
            after -= base.after
        elif not np.isfinite(stamp.time):
            # No line of the file has a time.
            end = self.latest if np.isfinite(self.latest) else self.written[stamp.path]
            return end + _LINE * (after - self.last[stamp.path].after)
        if base.has_year or not np.isfinite(self.latest):
            return base.time + _LINE * after
        return _nearest_year(base.time, self.latest) + _LINE * after


def _nearest_year(time: float, other: float) -> float:
    """The same day and time in the year in which it is nearest to `other`, Unix seconds."""
    moment = datetime.fromtimestamp(time, UTC)
    year = datetime.fromtimestamp(other, UTC).year
    fraction = time - float(int(time))
    found = [
        timegm((each, moment.month, moment.day, moment.hour, moment.minute, moment.second)) + fraction
        for each in (year - 1, year, year + 1)
    ]
    return min(found, key=lambda each: abs(each - other))


def lines_of(
    path: Path,
    wanted: re.Pattern[bytes],
    flood: Flood | None = None,
    file: Writer | None = None,
    sparse: re.Pattern[bytes] | None = None,
) -> Iterator[TextLine]:
    """The lines in which `wanted` occurs, in their order, and some in which `sparse` does.

    Parameters
    ----------
    flood, sparse
        As of `matching_lines`.
    file : Writer, optional
        As `writers_of_files` gives it; by default from the name of this file alone.

    Raises
    ------
    SourceError, InvalidInput
        If the file cannot be read, or its compressed data is damaged.
    """
    file = writers_of_files([path])[path] if file is None else file
    written = _modified(path)
    for whole in matching_lines(path, wanted, flood, sparse):
        raw = whole if len(whole) <= MAX_TEXT_LENGTH else _around_match(whole, wanted)
        for text in messages(raw):
            plain = _COLOUR.sub("", text) if "\x1b" in text else text
            yield TextLine(plain.rstrip(), path, file, written)


def _around_match(line: bytes, wanted: re.Pattern[bytes]) -> bytes:
    """The begin of a long line, with its labels, and what lies around the first match."""
    found = wanted.search(line)
    begin = 0 if found is None else max(0, found.start() - MAX_TEXT_LENGTH // 4)
    if begin < MAX_TEXT_LENGTH // 4:
        return line[:MAX_TEXT_LENGTH]
    return line[: MAX_TEXT_LENGTH // 4] + b" " + line[begin : begin + 3 * MAX_TEXT_LENGTH // 4]


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
    # A log that was truncated while it was written begins with zeros.
    head = unpacked(head).lstrip(b"\0")
    # A character may be cut at the end.
    text = head.decode("utf-16" if head[:2] in UTF16 else "utf-8", "replace")
    odd = _ODD.findall(text[:-1])
    begin = text.lstrip("\ufeff \r\n\t")
    # A part of a multipart body begins with its headers; a launcher may draw a line.
    is_body = text.startswith("--") and _PART_HEADER.search(text) is not None
    is_encoding = (begin[:1] == "{" and not are_json_lines(begin)) or is_body
    return None if is_encoding or len(odd) * _TEXT_PER_ODD > len(text) else text


def unpacked(head: bytes) -> bytes:
    """The first bytes of a file, decompressed if they are gzip; damaged gzip stays as it is."""
    if head[:2] != _GZIP:
        return head
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, MAX_LINE_LENGTH)
    except zlib.error:
        return head


def time_of(text: str, written: float) -> float:
    """The first time in a line, Unix seconds; NaN without one; `written` as in `dated`."""
    return dated(text, written)[0]


def dated(text: str, written: float) -> tuple[float, bool]:
    """The first time in a line, Unix seconds, and whether it has a year; NaN without one.

    Parameters
    ----------
    written : float, Unix seconds
        When the file was last written. Many logs leave out the year: the line is not much newer than this.
    """
    begin = _GLOG_BEGIN.match(text)
    if begin is not None:
        day = _day_without_year(written, int(begin[1][:-2]), int(begin[1][-2:]))
        return day + 3600 * int(begin[2]) + 60 * int(begin[3]) + float(begin[4]), False
    whole = _DATE_AND_TIME.search(text)
    if whole is not None:
        year, month, day, hour, minute, second = (int(whole[part]) for part in (1, 3, 4, 5, 6, 7))
        return _seconds(year, month, day, hour, minute, second, whole[8]) - _zone(whole[9]), True
    american = _AMERICAN_TIME.search(text)
    if american is not None:
        month, day, year, hour, minute, second = (int(american[part]) for part in range(1, 7))
        return _seconds(year, month, day, hour, minute, second, None), True
    glog = _GLOG_TIME.search(text)
    if glog is not None:
        month, day = divmod(int(glog[1].replace("-", "")), 100)
        time = _without_year(written, month, day, int(glog[2]), int(glog[3]), int(glog[4]), glog[5])
        return time, False
    syslog = _SYSLOG_TIME.search(text)
    if syslog is None:
        return np.nan, False
    month, day = _MONTHS.index(syslog[1]) + 1, int(syslog[2])
    hour, minute, second = int(syslog[3]), int(syslog[4]), int(syslog[5])
    if syslog[6]:
        return _seconds(int(syslog[6]), month, day, hour, minute, second, None), True
    return _without_year(written, month, day, hour, minute, second, None), False


def _without_year(
    written: float, month: int, day: int, hour: int, minute: int, second: int, fraction: str | None
) -> float:
    time = 3600 * hour + 60 * minute + second + float(f"0.{fraction or 0}")
    return _day_without_year(written, month, day) + time


@lru_cache(maxsize=256)
def _day_without_year(written: float, month: int, day: int) -> float:
    """The begin of the last such day before the day after `written`, Unix seconds; NaN without one."""
    year = datetime.fromtimestamp(written, UTC).year
    for each in (year + 1, year, year - 1):
        found = _seconds(each, month, day, 0, 0, 0, None)
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
    zone = text.strip()
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    return (-1.0 if zone[0] == "-" else 1.0) * (3600.0 * hours + 60.0 * minutes)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
