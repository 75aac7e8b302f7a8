"""Labels that launchers and loggers put before a line: the rank, task or node that wrote it."""

from __future__ import annotations

import re
from typing import NamedTuple

#: Labels stand near the begin of a line, but behind a progress bar.
MAX_LABEL_BEGIN = 400
#: A rank of the job: of PyTorch 2.2 and later, of its log handlers, of checkpoints, of Ray, Ascend, mpirun,
#: Composer, vLLM and SGLang.
_RANK = re.compile(
    r"\[rank(\d{1,6})\]|\[rank=(\d{1,6})\]|\(RANK (\d{1,6})\)|Worker rank=(\d{1,6})\b|\bRankID:(\d{1,6})\b"
    r"|^\[1,(?:mpirank:)?(\d{1,6})(?:,[\w.-]{1,80})?\]<std|^[^\n]{0,60}?\brank(\d{1,6})\[\d{1,9}\]\[MainThread"
    r"|\(Worker_TP(\d{1,4})(?:_EP\d{1,4})? pid=|\(VllmWorker(?:Process)? rank=(\d{1,6}) "
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: DP\d{1,4})? TP(\d{1,4})(?: EP\d{1,4})?\]"
)
#: A rank of the job or of a group of it.
_GROUP_RANK = re.compile(
    r"\[PG (?:ID 0 PG GUID )?+0? ?\(?(?:default_pg)?\)? ?Rank (\d{1,6})\]|\] \[Rank (\d{1,6})\] "
    r"|MPICH ERROR \[Rank (\d{1,6})\]"
)
#: A rank in a field of a logger.
_FIELD = re.compile(r"[\[({|, ](?:global[_ ])?[Rr]ank[ =:]{1,2}(\d{1,6})[\])}|,: ]")
#: A task, which may be a rank or a whole node: of ``srun --label``.
_TASK = re.compile(r"^\s*(\d{1,6}): ")
#: A process on its node: torchrun's role and local rank.
_LOCAL = re.compile(r"^\s*\[(?!rank\d)[A-Za-z_]+(\d{1,6})\]:")
#: The host: of a kernel or service line, as syslog and journalctl write it; of NCCL; of Ray's workers; of
#: UCX and Open MPI; of `kubectl logs --prefix`; of docker compose; of pdsh.
_HOSTS = (
    re.compile(r"\d\d:\d\d:\d\d\S{0,40}+ (\S{1,120}+) (?:kernel|systemd\[\d{1,9}+\]):"),
    re.compile(r"(?<![^\s\]>:])([A-Za-z][\w.-]{0,120}+):\d{1,9}+:\d{1,9}+ \[\d{1,3}+\] "),
    re.compile(r"^\(\w{1,80}+ pid=\d{1,9}+, ip=([\w.:-]{1,60}+)\)"),
    re.compile(r"^\[([A-Za-z][\w.-]{0,120}+):\d{1,9}+(?::\d{1,9}+){0,2}+\] "),
    re.compile(r"^\[pod/([\w.-]{1,253}+)/[\w.-]{1,253}+\] "),
    re.compile(r"^((?=[^|\s]{0,120}\d)[A-Za-z][\w.-]{0,120}+) {1,40}+\| "),
    re.compile(
        r"^((?=[^:\s]{0,120}\d)(?!(?:step|epoch|iter|layer|batch|cuda)[-_.]?\d)"
        r"(?:[A-Za-z][A-Za-z\d]{0,60}+[-.]|node|worker|host|nid)[\w.-]{1,120}+)"
        r"(?<!Error)(?<!Exception)(?<!Warning)(?<!\.py): "
    ),
)
#: What container runtimes, mpirun, kubectl, PyTorch, torchrun, Ray and srun put before what a process wrote.
_PREFIX = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] "
    r"|\[\d{1,3},(?:mpirank:)?\d{1,6}[^\]\s]{0,80}\]<std\w{3}>:|\[pod/\S{1,500}\] "
    r"|\[rank\d{1,6}\]:? ?|\[[A-Za-z_]+\d{1,6}\]: ?|\(\w{1,80} pid=\d{1,9}(?:, ip=[\w.:-]{1,60})?\) "
    r"|\s{0,20}\d{1,6}: (?!\[[A-Za-z])"
)
#: A line with one of these words is no failure yet.
_HARMLESS = re.compile(
    r"(?<![\w=])(?:WARN(?:ING)?|INFO|DEBUG)(?![\w=])|Warning: |(?:^|[\s:\[])W(?:\d{3,4} | )|: W "
    r"|\b(?:[Rr]etry(?:ing)?|retries left|retr(?:y|ied)|[Ii]gnor(?:ed|ing)|[Ff]all(?:ing)? ?back"
    r"|[Ss]kipp(?:ed|ing)|[Dd]eprecat\w{1,10}|attempt to recover)\b"
)


class Writer(NamedTuple):
    """The process that wrote a line, as far as its labels say.

    Attributes
    ----------
    task : int or None
        Number of a launcher's task, which is a rank or a node.
    local : int or None
        Number of the process on its node.
    """

    rank: int | None = None
    task: int | None = None
    local: int | None = None
    node: str | None = None


#: The writer of a line without a label.
NOBODY = Writer()


def rank_label(text: str) -> int | None:
    """The rank in a label that can only be a rank of the job."""
    if text.startswith("[rank"):
        # Most lines: the search for all forms takes ten times as long.
        number = text[5 : text.find("]", 5, 12)]
        if number.isdecimal():
            return int(number)
    return _number(_RANK.search(text))


def task_label(text: str) -> int | None:
    """The number that ``srun --label`` puts before a line."""
    if text[:1] == "[":
        return None
    return _number(_TASK.match(text))


def local_label(text: str) -> int | None:
    """The number of the process on its node, which torchrun puts before a line."""
    return _number(_LOCAL.match(text))


def writer_of(text: str) -> Writer:
    """The process that wrote a line; a rank of a group counts for one of the job."""
    rank = rank_label(text)
    if rank is None:
        rank = _number(_GROUP_RANK.search(text))
    if rank is None:
        rank = _number(_FIELD.search(text, 0, MAX_LABEL_BEGIN))
    return Writer(rank, task_label(text), local_label(text), host_label(text))


def host_label(text: str) -> str | None:
    """The host of a line."""
    found = next((each for each in (host.search(text) for host in _HOSTS) if each is not None), None)
    return None if found is None else found[1]


def without_prefix(text: str) -> str:
    """What the process itself wrote."""
    while (found := _PREFIX.match(text)) is not None:
        text = text[found.end() :]
    return text


def is_harmless(text: str) -> bool:
    """Whether a line says of itself that it is a warning, or that its error is tried again or ignored."""
    return _HARMLESS.search(text) is not None


def _number(found: re.Match[str] | None) -> int | None:
    return None if found is None else int(next(each for each in found.groups() if each is not None))
