"""The table of line kinds: examples are of their kind, patterns take linear time, `rca sources` lists all."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest
from logs_of_jobs import line

from rca.commands import sources
from rca.sources.logs.failure_tables import _FAILED, _PART
from rca.sources.logs.line_kinds import MAX_NUMBERS, LineKind, line_kinds, marks_pattern, numbers, said_by
from rca.sources.logs.line_labels import _FIELD, _GROUP_RANK, _HARMLESS, _HOSTS, _LOCAL, _RANK, _TASK
from rca.sources.logs.line_search import MAX_LINE_LENGTH
from rca.sources.logs.log_events import LogEvents
from rca.sources.logs.text_lines import LineClock, TextLine
from rca.sources.watchdog.messages import _CAUGHT, _GROUP, _STATUS
from tests.for_each import for_each

KINDS = line_kinds()
#: Processor time for the longest line, seconds: linear patterns take some milliseconds.
MAX_SECONDS = 0.5


def event_of(text: str) -> dict[str, object]:
    events, clock = LogEvents(), LineClock()
    one = line(text)
    events.add(one, clock.stamp(one))
    rows = events.rows or events.weak
    return {**rows[0]._asdict(), "ranks": [each.rank for each in rows]}


@for_each("kind", KINDS, [each.name for each in KINDS])
def test_an_example_is_of_its_kind_and_about_its_place(kind: LineKind) -> None:
    said = said_by(kind.example)
    assert said is not None
    assert said.kind.name == kind.name
    event = event_of(kind.example)
    assert event["kind"] == kind.event
    about = {"ranks" if name == "tasks" else name: value for name, value in kind.about.items()}
    named = {
        "rank": event["rank"],
        "ranks": event["ranks"],
        "node": event["node"],
        "code": said.code,
        "device": said.device,
        "pid": event["pid"],
        "local": str(said.local),
    }
    assert {name: named[name] for name in about} == about
    assert re.search(marks_pattern(), kind.example.encode()) is not None
    assert kind.says
    assert "/" in kind.source


def worst_lines(kind: LineKind) -> Iterator[str]:
    """Longest lines that a pattern with two ways to match the same text takes long for."""
    for begin in {kind.marks[0], kind.marks[-1], kind.example}:
        for filling in (begin, "1", "1,", "1, ", "a", "a ", " ", ":", "(", "[PG ", "/job:a", "10:00:00"):
            yield (begin + " " + filling * MAX_LINE_LENGTH)[:MAX_LINE_LENGTH]
    for word in kind.example.split()[:12]:
        yield (word * MAX_LINE_LENGTH)[:MAX_LINE_LENGTH]


@for_each("kind", KINDS, [each.name for each in KINDS])
def test_a_pattern_takes_linear_time_for_its_worst_line(kind: LineKind) -> None:
    for text in worst_lines(kind):
        begun = time.process_time()
        if kind.pattern is not None:
            kind.pattern.search(text)
        else:
            said_by(text)
        assert time.process_time() - begun < MAX_SECONDS


LABELS = [_RANK, _GROUP_RANK, _FIELD, _TASK, _LOCAL, _HARMLESS, *_HOSTS]


@pytest.mark.parametrize("pattern", [_FAILED, _PART, *LABELS, _CAUGHT, _GROUP, _STATUS])
def test_other_patterns_of_log_lines_take_linear_time(pattern: re.Pattern[str]) -> None:
    fillings = (
        "[PG ",
        "[PG (",
        "[PG ID 1 PG GUID 1(",
        "10:00:00 a ",
        "10:00:00",
        "a",
        " ",
        "time : ",
        "1:1 ",
        "a1-",
        "[a:1:1",
        "[pod/a",
        "rank1[",
        "(rank ",
    )
    fillings += (
        "Watchdog caught collective operation timeout: WorkNCCL(OpType=A) ran for ",
        "Last enqueued work: 1",
    )
    for filling in fillings:
        text = (filling * MAX_LINE_LENGTH)[:MAX_LINE_LENGTH]
        begun = time.process_time()
        pattern.search(text)
        assert time.process_time() - begun < MAX_SECONDS


def test_the_command_lists_every_kind_of_line(capsys: pytest.CaptureFixture[str]) -> None:
    sources.command(sources.OutputFormat.json)
    listed = [line for row in json.loads(capsys.readouterr().out) for line in row.get("lines", [])]
    assert [each["name"] for each in listed] == [each.name for each in KINDS]
    assert all(each["example"] and each["says"] and each["source"] for each in listed)


def test_lists_of_numbers_have_a_limit() -> None:
    assert numbers("4, 6-7,9") == (4, 6, 7, 9)
    assert len(numbers("0-999999")) == MAX_NUMBERS


def test_a_line_of_no_kind_says_nothing() -> None:
    assert said_by("step 10 loss 2.1") is None
    assert said_by("pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer") is None
    assert isinstance(line("a"), TextLine)
