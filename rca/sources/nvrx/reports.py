"""Reports of NVRx as JSON, as a printed `Report`, and as its callback for Lightning logs them.

A score is the median time of the fastest rank (relative) or of the rank's own past (individual), over the
rank's median time now. 0.5 is twice as slow. Sections are timed in milliseconds, kernels in microseconds.

References
----------
NVIDIA/nvidia-resiliency-ext, ``attribution/straggler/reporting.py`` and
``ptl_resiliency/straggler_det_callback.py``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from rca.errors import InvalidInput, SourceError, TooLarge, cut
from rca.files import read_file
from rca.sources.logs.failure_tables import one_line
from rca.sources.logs.text_lines import TextLine
from rca.window.rows.validation import MAX_WORLD_SIZE

MAX_JSON_BYTES = 256 * 1024**2
MAX_REPORTS = 10_000
#: Scores are rounded, and kernels are weighted.
_HIGHEST_SCORE = 1.01
#: No median of a section is longer, milliseconds.
_MAX_MS = 86_400_000.0
Kind = Literal["gpu_relative", "gpu_individual", "section_relative", "section_individual"]
KINDS: tuple[Kind, ...] = ("gpu_relative", "gpu_individual", "section_relative", "section_individual")
_MEMBERS = tuple(f"{kind}_perf_scores" for kind in KINDS)
#: Lines of the callback, of the example of NVRx, and of a printed report.
MARKS = re.compile(
    rb"GPU (?:relative|individual) performance:|STRAGGLER DETECTION WARNING: Some GPU"
    rb"|GPUs (?:relative|individual) perf: \{|Report\(gpu_relative_perf_scores="
)
#: Finds every line that `ReportLog.add` may use; some only have the time of a report.
LINES = (
    MARKS.pattern + rb"|Rank=\d+ Node=\S+ Score=|performing \d+/\d+ ranks:|straggler_det_callback"
    rb"|StragglerDetectionCallback|Straggler report processing time"
)
_HEAD = re.compile(r"GPU (relative|individual) performance:")
_SCORE = re.compile(r"Rank=(\d{1,9}) Node=(\S+) Score=(nan|-?\d+(?:\.\d+)?)")
_COUNT = re.compile(r"performing \d+/(\d{1,9}) ranks:")
_DICT = re.compile(r"GPUs (relative|individual) perf: (\{[^}]*\})")
_WARNING = re.compile(r"STRAGGLER DETECTION WARNING: Some GPU(.*?)Affected ranks: (\{.*\})")
_NAMED = re.compile(r"rank=(\d{1,9})(?:, node='([^']*)')?")
_PRINTED = "Report(gpu_relative_perf_scores="


@dataclass
class NvrxReport:
    """One report.

    Attributes
    ----------
    time : float, Unix seconds
        NaN if unknown.
    scores : dict
        By kind, then by section ("" for the GPU), then by rank.
    sections : dict of str to dict of int to (seconds, count)
        Median time of a section on each rank, and how often it ran.
    kernels : dict of int to dict of str to (median, total)
        Median and total time of each kernel on a rank, in one unit.
    flagged : set of int
        Ranks that are called stragglers, without a score.
    n_ranks : int
        Ranks of the job, as far as the report says; 0 if it does not.
    without_score : set of int
        Ranks with a score of 0 or below, which is none.
    """

    time: float = np.nan
    scores: dict[Kind, dict[str, dict[int, float]]] = field(default_factory=dict)
    sections: dict[str, dict[int, tuple[float, int]]] = field(default_factory=dict)
    kernels: dict[int, dict[str, tuple[float, float]]] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    flagged: set[int] = field(default_factory=set)
    n_ranks: int = 0
    without_score: set[int] = field(default_factory=set)

    @property
    def ranks(self) -> set[int]:
        """Every rank that the report names."""
        named = {rank for parts in self.scores.values() for part in parts.values() for rank in part}
        timed = {rank for part in self.sections.values() for rank in part}
        return named | timed | self.kernels.keys() | self.flagged

    def add_score(self, kind: Kind, section: str, rank: int, score: float) -> None:
        """Add a score; NaN and 0 mean that there was nothing to compare.

        Raises
        ------
        InvalidInput
            If it is above 1, which no score is.
        """
        if score > _HIGHEST_SCORE:
            raise InvalidInput(
                f"a report of NVRx gives rank {rank} the score {score:g}, above 1",
                hint="a score is the share of the fastest rank's speed, from 0 to 1",
            )
        if np.isfinite(score) and score > 0:
            self.scores.setdefault(kind, {}).setdefault(section, {})[rank] = score
        elif score <= 0:
            self.without_score.add(rank)

    def merge(self, other: NvrxReport) -> None:
        """Add what another rank reported at the same time."""
        for kind, parts in other.scores.items():
            for section, scores in parts.items():
                self.scores.setdefault(kind, {}).setdefault(section, {}).update(scores)
        for section, medians in other.sections.items():
            self.sections.setdefault(section, {}).update(medians)
        self.kernels.update(other.kernels)
        self.nodes.update(other.nodes)
        self.flagged |= other.flagged
        self.without_score |= other.without_score
        self.n_ranks = max(self.n_ranks, other.n_ranks)


@dataclass
class ReportLog:
    """Reports in the lines of a log.

    Attributes
    ----------
    damaged : int
        Lines of reports with an unknown form.
    """

    reports: list[NvrxReport] = field(default_factory=list)
    damaged: int = 0
    _kind: Kind | None = None
    _time: float = np.nan

    def add(self, line: TextLine) -> None:
        """Add a line that `LINES` finds."""
        text = line.text
        self._time = line.time
        if self.reports and np.isnan(self.reports[-1].time):
            # The callback logs a line with the time after the lines of the scores, which have none.
            self.reports[-1].time = line.time
        if (head := _HEAD.search(text)) is not None:
            self._begin("gpu_relative" if head[1] == "relative" else "gpu_individual")
        elif (score := _SCORE.search(text)) is not None:
            self._add_score(score)
        elif (count := _COUNT.search(text)) is not None and self.reports:
            self.reports[-1].n_ranks = max(self.reports[-1].n_ranks, int(count[1]))
        elif _PRINTED in text:
            self._add_printed(text[text.index(_PRINTED) :])
        elif (both := _DICT.search(text)) is not None:
            self._begin("gpu_relative" if both[1] == "relative" else "gpu_individual")
            self._add_dict(both[2])
        elif (warning := _WARNING.search(text)) is not None:
            self._add_warning(warning[2])
        elif MARKS.search(text.encode()):
            self.damaged += 1

    def _begin(self, kind: Kind) -> None:
        current = self.reports[-1] if self.reports else None
        if current is None or kind in current.scores or current.sections:
            self._start()
        self._kind = kind

    def _start(self) -> NvrxReport:
        if len(self.reports) >= MAX_REPORTS:
            raise InvalidInput(f"the log holds more than {MAX_REPORTS:,} reports of NVRx")
        self.reports.append(NvrxReport(self._time))
        return self.reports[-1]

    def _add_score(self, found: re.Match[str]) -> None:
        if self._kind is None or not self.reports:
            self.damaged += 1
            return
        rank = int(found[1])
        self.reports[-1].nodes[rank] = one_line(found[2])
        self.reports[-1].add_score(self._kind, "", rank, float(found[3]))

    def _add_dict(self, text: str) -> None:
        scores = literal(text)
        if not isinstance(scores, dict) or self._kind is None:
            self.damaged += 1
            return
        for rank, score in scores.items():
            if isinstance(rank, int):
                self.reports[-1].n_ranks = max(self.reports[-1].n_ranks, rank + 1)
            if isinstance(rank, int) and isinstance(score, int | float):
                self.reports[-1].add_score(self._kind, "", rank, float(score))

    def _add_warning(self, text: str) -> None:
        # The callback logs warnings before the scores of the same report.
        current = self.reports[-1] if self.reports else None
        if current is None or current.scores:
            current = self._start()
        for rank, node in _NAMED.findall(text):
            current.flagged.add(int(rank))
            if node:
                current.nodes[int(rank)] = one_line(node)

    def _add_printed(self, text: str) -> None:
        members = {name: _member(text, name) for name in (*_MEMBERS, "rank_to_node")}
        members |= {name: _member(text, f"local_{name}_summaries") for name in ("section", "kernel")}
        rank = re.search(r"\brank=(\d{1,9})\)", text)
        content = {name: value for name, value in members.items() if isinstance(value, dict)}
        summaries = {f"local_{name}_summaries": content.pop(name, {}) for name in ("section", "kernel")}
        try:
            found = from_document(content | summaries | {"rank": None if rank is None else int(rank[1])})
        except (TypeError, ValueError, AttributeError):
            self.damaged += 1
            return
        found.time = self._time
        self.reports.append(found)
        self._kind = None


def is_report(head: bytes) -> bool:
    """Whether a file is a report, or several, as JSON, by its first bytes."""
    return head.lstrip()[:1] in (b"{", b"[") and any(f'"{name}"'.encode() in head for name in _MEMBERS)


def read_json(path: Path) -> list[NvrxReport]:
    """Read a file with one report, a list of them, or one per line.

    Raises
    ------
    InvalidInput
        If it is cut, or has no scores and no summaries.
    """
    try:
        if (size := path.stat().st_size) > MAX_JSON_BYTES:
            raise TooLarge(
                f"{path.name} has {size:,} bytes; the limit of reports is {MAX_JSON_BYTES:,} bytes"
            )
        body = read_file(path)
        written = path.stat().st_mtime
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        documents = _documents(body)
        reports = [from_document(each) for each in documents]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidInput(
            f"{path.name} is no complete report of NVRx: {cut(str(error))}",
            hint="write dataclasses.asdict(report) as JSON, with the names of NVRx 0.4 or later",
        ) from None
    if len(reports) == 1 and not np.isfinite(reports[0].time):
        reports[0].time = written
    return reports


def _documents(body: bytes) -> list[Mapping[str, Any]]:
    try:
        content = orjson.loads(body)
        return content if isinstance(content, list) else [content]
    except orjson.JSONDecodeError as error:
        lines = [line for line in body.splitlines() if line.strip()]
        if len(lines) < 2:
            raise ValueError(str(error)) from None
        return [orjson.loads(line) for line in lines]


def from_document(document: Mapping[str, Any]) -> NvrxReport:
    """A report from the members of `Report` of NVRx, with ranks as numbers or texts.

    Raises
    ------
    TypeError, ValueError, AttributeError
        If a member has another form, or none of them is known.
    """
    if not any(document.get(name) for name in (*_MEMBERS, "local_section_summaries")):
        raise ValueError("it has neither *_perf_scores nor local_section_summaries")
    found = NvrxReport(_time(document))
    for kind in KINDS:
        scores = document.get(f"{kind}_perf_scores") or {}
        parts = {"": scores} if kind.startswith("gpu") else scores
        for section, of_ranks in parts.items():
            for rank, score in of_ranks.items():
                if score is not None:
                    found.add_score(kind, one_line(str(section)), _rank(rank), float(score))
    for rank, node in (document.get("rank_to_node") or {}).items():
        found.nodes[_rank(rank)] = one_line(str(node))
    if document.get("rank") is not None:
        _add_summaries(found, _rank(document["rank"]), document)
    return found


def _add_summaries(found: NvrxReport, rank: int, document: Mapping[str, Any]) -> None:
    for section, summary in (document.get("local_section_summaries") or {}).items():
        held = _statistics(summary)
        if held.get("MED", 0.0) > _MAX_MS:
            raise ValueError(f"section {section} takes {held['MED']:g} ms: its times are not milliseconds")
        if held.get("MED", 0.0) > 0:
            count = int(held.get("NUM", 1))
            found.sections.setdefault(one_line(str(section)), {})[rank] = held["MED"] / 1e3, count
    kernels = {}
    for kernel, summary in (document.get("local_kernel_summaries") or {}).items():
        held = _statistics(summary)
        if "ncclDev" not in kernel and {"MED", "NUM", "AVG"} <= held.keys() and held["MED"] > 0:
            kernels[str(kernel)] = held["MED"], held["NUM"] * held["AVG"]
    if kernels:
        found.kernels[rank] = kernels


def _statistics(summary: Mapping[Any, Any]) -> dict[str, float]:
    """Statistics by name: keys are ``MED``, ``Statistic.MED`` or the number of the enumeration."""
    numbers = {"1": "MIN", "2": "MAX", "3": "MED", "4": "AVG", "5": "STD", "6": "NUM"}
    named = {str(key).rpartition(".")[2].upper(): value for key, value in summary.items()}
    return {numbers.get(name, name): float(value) for name, value in named.items() if value is not None}


def _time(document: Mapping[str, Any]) -> float:
    """A time that was added to the report, Unix seconds; NaN without one."""
    value = document.get("time", document.get("timestamp"))
    return float(value) if isinstance(value, int | float) and 1e9 < value < 1e11 else np.nan


def _rank(value: object) -> int:
    rank = int(str(value))
    if not 0 <= rank < MAX_WORLD_SIZE:
        raise ValueError(f"rank {rank} is no rank of a job")
    return rank


def _member(text: str, name: str) -> object:
    """The dict of a member in a printed dataclass; None if it is cut or absent."""
    at = text.find(f"{name}=")
    begin = text.find("{", at)
    if at < 0 or begin < 0:
        return None
    depth = 0
    for place in range(begin, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return literal(text[begin : place + 1])
    return None


def literal(text: str) -> object:
    """A printed dict of numbers, texts and dicts; None if it is none."""
    text = re.sub(r"<?Statistic\.(\w+)(?:: \d+>)?", r"'\1'", text)
    text = re.sub(r"(?<![\w'])nan(?![\w'])", "None", text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def by_turn(of_files: Iterable[list[NvrxReport]]) -> list[NvrxReport]:
    """Reports of all ranks: those that each rank wrote at the same turn are one report."""
    merged: list[NvrxReport] = []
    for reports in of_files:
        for turn, report in enumerate(reports):
            if turn < len(merged) and not merged[turn].ranks & report.ranks:
                merged[turn].merge(report)
            else:
                merged.append(report)
    return merged
