"""Pods of a job in Kubernetes: ``kubectl get pods -o json``, and the text of ``kubectl describe pods``.

A pod is named by its node, else by its own name.

References
----------
Kubernetes 1.20 to 1.34, ``v1/Pod``: ``status.containerStatuses``, ``state.terminated`` and ``lastState``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from rca.errors import InvalidInput
from rca.sources.event_windows import small_text, window_of_events, with_events
from rca.sources.logs.failure_tables import one_line
from rca.sources.logs.log_events import LogEvents
from rca.sources.logs.text_lines import Stamp, time_of
from rca.sources.source import Source
from rca.window.window import Window

_MARKS = re.compile(rb'"(?:containerStatuses|podIPs?)"\s*:')
_DESCRIBED = re.compile(rb"^Name:[ \t]+\S+\r?\nNamespace:[ \t]", re.MULTILINE)
_FIELD = re.compile(r"^ {0,40}([A-Z][A-Za-z ]{1,40}?):[ \t]{1,60}(\S.{0,400})$")
_ADVICE = "write it with `kubectl get pods -o json -n NAMESPACE`"
#: RFC 2822 without the day, as ``kubectl describe`` writes times.
_LONG_TIME = re.compile(r"(\d{2}) ([A-Z][a-z]{2}) (\d{4}) (\d\d:\d\d:\d\d) ([+-]\d{4})")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: Reasons of the whole pod, and what they mean.
_OF_POD = {"Evicted": "process_exit", "NodeLost": "node_down", "NodeShutdown": "process_exit"}


class _End(NamedTuple):
    """The end of a container; `code` is its exit code, or the reason of the pod's end."""

    pod: str
    node: str
    kind: str
    code: str
    reason: str
    finished: str


def is_pods(head: bytes, _: str) -> bool:
    """Whether a file holds pods, by its first bytes."""
    listed = head.lstrip()[:1] == b"{" and _MARKS.search(head) is not None
    return listed or _DESCRIBED.match(head.lstrip()) is not None


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the pods of one job into a window with the ends of their containers.

    Raises
    ------
    InvalidInput
        If a file is damaged, or no container has ended.
    """
    written = max(path.stat().st_mtime for path in paths)
    events = LogEvents()
    for end in (end for path in paths for end in _ends(path)):
        time = time_of(_iso(end.finished), written)
        stamp = Stamp(time if np.isfinite(time) else written, 0, True)
        code = f", exit code {end.code}" if end.code.isdecimal() else ""
        message = one_line(f"{end.pod}: {end.reason}{code}")
        events.append(stamp, end.kind, message, code=end.code, node=end.node or end.pod)
    failed = [row for row in events.rows if row.code != "0"]
    events.rows = failed or events.rows
    if not events.rows:
        names = ", ".join(path.name for path in paths[:3])
        raise InvalidInput(f"{names}: no container of a pod has ended", hint=_ADVICE)
    return window_of_events(events, job_id, written, ())


def _ends(path: Path) -> Iterator[_End]:
    text = small_text(path)
    if not text.lstrip().startswith("{"):
        yield from _described(text)
        return
    try:
        content = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path.name} is no complete JSON document: {error}", hint=_ADVICE) from None
    items = content.get("items", [content]) if isinstance(content, dict) else None
    if not isinstance(items, list):
        raise InvalidInput(f"{path.name} is no list of pods", hint=_ADVICE)
    for item in items:
        yield from _of_pod(item)


def _of_pod(item: object) -> Iterator[_End]:
    status = _member(item, "status")
    pod, node = _text(_member(item, "metadata"), "name"), _text(_member(item, "spec"), "nodeName")
    reason = _text(status, "reason")
    if reason in _OF_POD:
        yield _End(pod, node, _OF_POD[reason], reason, f"{reason} {_text(status, 'message')}", "")
    containers = status.get("containerStatuses")
    for container in containers if isinstance(containers, list) else []:
        for state in ("state", "lastState"):
            ended = _member(_member(container, state), "terminated")
            if isinstance(ended.get("exitCode"), int):
                code, reason = str(ended["exitCode"]), _text(ended, "reason")
                code = reason if reason == "OOMKilled" else code
                yield _End(pod, node, "process_exit", code, reason, _text(ended, "finishedAt"))


def _described(text: str) -> Iterator[_End]:
    """The ends that ``kubectl describe`` lists: of each container the state, and the one before it."""
    pod = node = reason = code = ""
    for line in text.splitlines():
        found = _FIELD.match(line)
        if found is None:
            continue
        name, value = found[1], found[2].strip()
        if name == "Name" and not line.startswith(" "):
            pod, node, reason, code = value, "", "", ""
        elif name == "Node":
            node = value.partition("/")[0].removeprefix("<none>")
        elif name in ("Reason", "Status") and not line.startswith(" "):
            if value in _OF_POD:
                yield _End(pod, node, _OF_POD[value], value, value, "")
        elif name == "Reason":
            reason = value
        elif name == "Exit Code":
            code = reason if reason == "OOMKilled" else value
        elif name == "Finished":
            yield _End(pod, node, "process_exit", code, reason, value)


def _iso(time: str) -> str:
    """A time of ``kubectl describe`` in the form of other times."""
    found = _LONG_TIME.search(time)
    if found is None or found[2] not in _MONTHS:
        return time
    return f"{found[3]}-{_MONTHS.index(found[2]) + 1:02}-{found[1]} {found[4]}{found[5]}"


def _member(item: object, name: str) -> Mapping[str, Any]:
    found = item.get(name) if isinstance(item, dict) else None
    return found if isinstance(found, dict) else {}


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return one_line(value) if isinstance(value, str) else ""


SOURCE = Source(
    name="kubernetes-pods",
    title="pods of a job in Kubernetes: `kubectl get pods -o json` or `kubectl describe pods`",
    tells="for a stopped job: which containers ended, with which exit code, when and on which node",
    lacks="ranks, speed and hardware; pods that were deleted",
    recognises=is_pods,
    read=read,
    late_marks=_MARKS,
    join=with_events,
)
