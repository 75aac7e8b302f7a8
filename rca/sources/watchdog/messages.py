"""Messages of PyTorch's NCCL watchdog in job logs, and the rank that wrote each.

References
----------
PyTorch 2.1 to 2.9, ``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rca.errors import InvalidInput
from rca.files import open_file
from rca.sources.logs.event_places import place
from rca.sources.logs.failure_tables import MAX_MESSAGE_LENGTH, ONE_STOP, one_line
from rca.sources.logs.file_names import writers_of_files
from rca.sources.logs.line_kinds import marks_pattern, numbers
from rca.sources.logs.log_events import PATTERN as EVENT_PATTERN
from rca.sources.logs.log_events import LogEvents
from rca.sources.logs.nccl_places import NcclPlaces
from rca.sources.logs.text_lines import LineClock, Stamp, TextLine, lines_of, mixed
from rca.sources.step_logs import MARKS as STEP_LINES

#: A file with such a line is a log of a stopped job.
MARKS = re.compile(
    rb"Watchdog caught collective operation timeout|[Ll]ast enqueued (?:NCCL )?work: -?\d|ChildFailedError"
    rb"|Root Cause \(first observed failure\)"
    rb"|Missing ranks:|imed out task names:|The actor died unexpectedly|" + marks_pattern()
)
#: Lines that show progress of a job.
_PROGRESS = re.compile(
    STEP_LINES.pattern + rb"|[Tt]raining (?:is |has )?(?:completed?|finished)|[Ss]aved checkpoint"
    rb"|\biter(?:ation)? +\d+[ /:]",
    re.MULTILINE,
)
_SIZES = rb"nranks \d|dist_world_size=|using world size: |global_ranks=\[|global_world_sizes=\["
#: Finds every line that `JobLog.add` may use.
WANTED = re.compile(
    rb"Watchdog caught collective|[Ll]ast enqueued (?:NCCL )?work|" + _SIZES + rb"|" + EVENT_PATTERN.pattern,
    re.MULTILINE,
)
_CAUGHT = re.compile(
    r"(?:\[Rank (\d{1,9})\] )?Watchdog caught collective operation timeout: Work\w{0,20}+"
    r"\((?:SeqNum=(\d{1,19}), )?OpType=(\w{1,80}+)[^)]{0,400}+(?:\)=\d++)?\) ran for (\d{1,18}+) milliseconds"
)
_MAX_RANK_LABEL = 20
_GROUP = re.compile(
    r"\[PG (?:ID \d{1,19}+ PG GUID )?([^\s(\]]{1,200}+) ?(?:\(([^)\]]{0,200}+)\))? ?Rank (\d{1,9})\]"
)
_STATUS = re.compile(
    r"[Ll]ast enqueued(?: NCCL)? work: (-?\d{1,19}), last completed(?: NCCL)?(?: work)?: (-?\d{1,19})"
)
_FAILED_WORK = re.compile(r"\bat (?:NCCL )?work(?: sequence id)?: (\d{1,19})")
#: The exception quotes the first message again, without the label of the rank.
_REPEATED = "watchdog thread terminated with exception"
_WORLD = re.compile(
    r"\bnranks (\d{1,9})|dist_world_size=(\d{1,9})|using world size: (\d{1,9})|global_world_sizes=\[(\d{1,9})"
)
#: The ranks of the processes that an agent of torchrun started.
_AGENT = re.compile(r"\bglobal_ranks=\[(\d{1,6}(?:, ?\d{1,6}){0,1023})\]")
#: Names of the group of all ranks, and of the one that lines without a group are taken for.
DEFAULT_GROUP = "default_pg"
UNNAMED_GROUP = "process group"
#: Messages of one log; beyond, the log is not of one job.
MAX_MESSAGES = 1_000_000
_LARGEST = 2**62
#: The beginning of a line of the watchdog, before its message.
_BEGUN = re.compile(rb"^(?:\[rank\d+\]:? ?)\[[EWI]\d{3,4} |ProcessGroupNCCL")
_TAIL_BYTES = 4096


class Message(NamedTuple):
    """What one line says about one rank.

    `group` is empty if the line names none; `waits_at` is -1 if the rank does not wait. `waited` is in
    seconds.
    """

    rank: int | None
    task: int | None
    group_rank: int | None
    group: str
    waits_at: int
    enqueued: int
    completed: int
    operation: str
    waited: float
    time: float
    text: str
    path: Path
    stamp: Stamp

    @property
    def since(self) -> float:
        """When the rank began to wait, Unix seconds; NaN if it is unknown."""
        return self.time - self.waited


@dataclass
class JobLog:
    """Messages of all logs of a job.

    Attributes
    ----------
    logged : set of int
        Ranks that have a log of their own, or a line with their label.
    agents : dict of Path to list of int
        The ranks of a node's processes, by the file of its launcher.
    labelled, labels_are_ranks : bool
        Lines have a launcher's label and their rank; both are always the same.
    """

    messages: list[Message] = field(default_factory=list)
    events: LogEvents = field(default_factory=LogEvents)
    logged: set[int] = field(default_factory=set)
    world_size: int = 0
    latest_file: float = 0.0
    unreadable: int = 0
    labelled: bool = False
    labels_are_ranks: bool = True
    clock: LineClock = field(default_factory=LineClock)
    places: NcclPlaces = field(default_factory=NcclPlaces)
    agents: dict[Path, list[int]] = field(default_factory=dict)

    def add(self, line: TextLine) -> None:
        """Add a line that `WANTED` finds."""
        stamp = self.clock.stamp(line)
        if (rank := line.rank) is not None:
            self.logged.add(rank)
            if (label := line.label) is not None:
                self.labels_are_ranks &= label == rank
                self.labelled = True
        known = self._add_message(line, rank, stamp) or self.events.add(line, stamp)
        if not known and np.isfinite(stamp.time) and _PROGRESS.search(line.text.encode()):
            self.events.go_on(stamp, self.clock)
        if len(self.messages) > MAX_MESSAGES:
            raise InvalidInput(f"the logs hold more than {MAX_MESSAGES:,} watchdog messages")

    def _add_message(self, line: TextLine, rank: int | None, stamp: Stamp) -> bool:
        """Add what a line of the watchdog, or of the begin of a job, says; whether it is one."""
        text = line.text
        if "global_ranks=[" in text and (agent := _AGENT.search(text)) is not None:
            self.agents[line.path] = list(numbers(agent[1]))
            return True
        begin, counted = text.find("Watchdog caught"), "ast enqueued" in text
        fired = begin >= 0
        if fired and _REPEATED in text:
            return True
        # The label of the rank stands right before it.
        caught = _CAUGHT.search(text, max(0, begin - _MAX_RANK_LABEL)) if fired else None
        status = _STATUS.search(text) if counted else None
        group = _GROUP.search(text) if counted else None
        if caught is not None and (caught[2] or (status and group)):
            self._add_caught(line, rank, caught, stamp)
        elif status is not None and group is not None:
            self._add_status(line, rank, status, group, stamp)
        elif (size := _WORLD.search(text)) is not None:
            self.world_size = max(self.world_size, *(int(each) for each in size.groups() if each))
            self.places.add(text, line.path)
        elif caught is not None and caught[1] is not None:
            # Without a number only the wait is known.
            rank = int(caught[1]) if rank is None else rank
            self.events.append(stamp, "nccl_timeout", text[caught.start() :], code=caught[3], rank=rank)
        elif fired or counted:
            self.unreadable += 1
        else:
            return False
        return True

    @property
    def tells_failure(self) -> bool:
        """Whether a line reports a failure, or a rank that waited until its timeout."""
        return bool(self.messages) or self.events.tell_failure

    def place(self, notes: list[str]) -> None:
        """Set all times and the ranks of events, once all lines were added."""
        self.messages = [each._replace(time=self.clock.time_of(each.stamp)) for each in self.messages]
        ranks = self.logged | {each.group_rank for each in self.messages if each.group_rank is not None}
        tasks_are_ranks = self.labelled and self.labels_are_ranks
        place(
            self.events,
            self.clock,
            ranks,
            self.world_size,
            notes,
            tasks_are_ranks=tasks_are_ranks,
            places=self.places,
            agents=self.agents,
            waits=bool(self.messages),
        )

    def _add_caught(self, line: TextLine, rank: int | None, caught: re.Match[str], stamp: Stamp) -> None:
        waits_at = min(int(caught[2]), _LARGEST)
        waited = float(caught[4]) / 1e3
        group_rank = None if caught[1] is None else int(caught[1])
        task = line.task if rank is None else None
        self.messages.append(
            Message(
                rank, task, group_rank, "", waits_at, waits_at, waits_at - 1, caught[3], waited,
                stamp.time, line.text[caught.start() :][:MAX_MESSAGE_LENGTH], line.path, stamp,
            )
        )  # fmt: skip

    def _add_status(
        self, line: TextLine, rank: int | None, status: re.Match[str], group: re.Match[str], stamp: Stamp
    ) -> None:
        enqueued, completed = (min(int(status[part]), _LARGEST) for part in (1, 2))
        failed = _FAILED_WORK.search(line.text)
        waits_at = int(failed[1]) if failed else completed + 1 if completed < enqueued else -1
        name = f"{group[2]} ({group[1]})" if group[2] and group[2] != "undefined" else group[1]
        task = line.task if rank is None else None
        self.messages.append(
            Message(
                rank, task, int(group[3]), one_line(name) or UNNAMED_GROUP, min(waits_at, _LARGEST), enqueued,
                completed, "", np.nan, stamp.time, line.text[group.start() :][:MAX_MESSAGE_LENGTH],
                line.path, stamp,
            )
        )  # fmt: skip


def scan(paths: Sequence[Path]) -> JobLog:
    """Collect the messages and events of all logs."""
    log = JobLog()
    for path, file in writers_of_files(paths).items():
        log.latest_file = max(log.latest_file, path.stat().st_mtime)
        named = file.task if file.rank is None else file.rank
        if named is not None:
            log.logged.add(named)
        for line in lines_of(path, WANTED, log.events.flood, file, _PROGRESS):
            log.add(line)
        log.unreadable += _ends_in_a_cut_line(path)
    return log


def _ends_in_a_cut_line(path: Path) -> bool:
    """Whether a plain log ends within the beginning of a watchdog's line."""
    with open_file(path) as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        last = file.read().rsplit(b"\n", 1)[-1]
    return _BEGUN.search(last) is not None and re.search(WANTED.pattern, last) is None


def last_stop(messages: list[Message], notes: list[str]) -> list[Message]:
    """Messages of the last stop; a job that was started again has earlier ones."""
    latest = max((each.time for each in messages if np.isfinite(each.time)), default=np.nan)
    kept = [each for each in messages if not each.time < latest - ONE_STOP]
    if len(kept) < len(messages):
        notes.append(f"{len(messages) - len(kept)} messages of earlier stops are left out")
    return kept


def refuse_two_jobs(messages: Sequence[Message]) -> None:
    """Refuse files that say different things about one rank.

    A file may repeat another one: torchrun copies what a rank writes. Ranks that are taken from a group are
    compared within it.
    """
    said: dict[tuple[int, str | None], dict[Path, set[tuple[str, float | None]]]] = {}
    for rank, guessed, each in _ranks(messages):
        when = each.time if np.isfinite(each.stamp.time) and each.stamp.after == 0 else None
        files = said.setdefault((rank, each.group if guessed else None), {})
        files.setdefault(each.path, set()).add((each.text, when))
    for (rank, _), files in said.items():
        fullest = max(files, key=lambda path: len(files[path]))
        for path, texts in files.items():
            if not texts <= files[fullest]:
                one, other = sorted((path, fullest))
                raise mixed(one, other, f"messages of rank {rank}")


def _ranks(messages: Sequence[Message]) -> Iterator[tuple[int, bool, Message]]:
    """Each message that names a rank, with it, and whether it is only known from a group."""
    of_task: dict[tuple[int, str], set[int]] = {}
    for each in messages:
        if each.task is not None and each.group_rank is not None:
            of_task.setdefault((each.task, each.group), set()).add(each.group_rank)
    tasks_are_ranks = all(len(ranks) == 1 for ranks in of_task.values())
    for each in messages:
        is_default = each.group == "0" or each.group.startswith(DEFAULT_GROUP)
        if each.rank is not None:
            yield each.rank, False, each
        elif is_default or each.task is None or not tasks_are_ranks:
            if each.group_rank is not None:
                yield each.group_rank, not is_default, each
        else:
            yield each.task, False, each


def with_ranks(messages: Sequence[Message], notes: list[str]) -> list[tuple[int, Message]]:
    """Each message with the rank that wrote it.

    Without a label of its own, a rank of the default group is the job's rank. Labels of tasks are ranks if
    each of them has lines of one rank only; else they are nodes.
    """
    found: list[tuple[int, Message]] = []
    guesses = 0
    for rank, guessed, each in _ranks(messages):
        guesses += guessed
        found.append((rank, each))
    if guesses:
        notes.append(
            f"{guesses} lines name the rank in its group only; it is taken for the rank of the job "
            "(keep the labels [rankN]: of PyTorch, or use one file per rank)"
        )
    if len(found) < len(messages):
        notes.append(f"{len(messages) - len(found)} lines of the watchdog name no rank")
    return found


def events_of(log: JobLog, world_size: int, otherwise: float) -> pa.Table:
    """Events of logs, with one for each rank whose watchdog fired; events without a time get `otherwise`.

    `JobLog.place` has set their times.

    Raises
    ------
    InvalidInput
        If two files hold different messages of one rank.
    """
    refuse_two_jobs(log.messages)
    ended = log.events.keep_last_attempt([])
    later = [each for each in log.messages if not each.time <= ended]
    add_timeouts(with_ranks(last_stop(later, []), []), log.events)
    return log.events.table(world_size, otherwise)


def add_timeouts(ranked: Sequence[tuple[int, Message]], events: LogEvents) -> None:
    """One event for each rank whose watchdog fired, with the message that says most."""
    fired: dict[int, Message] = {}
    for rank, each in ranked:
        before = fired.get(rank)
        by_itself = "Received a dump signal due to a collective timeout from rank" not in each.text
        if each.waits_at >= 0 and by_itself and (before is None or (each.group and not before.group)):
            fired[rank] = each if before is None else each._replace(time=before.time)
    for rank, each in fired.items():
        stamp = Stamp(each.time, 0, True)
        events.append(stamp, "nccl_timeout", each.text, code=each.operation or None, rank=rank)
