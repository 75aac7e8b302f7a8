"""Events of Kubernetes as JSON (``kubectl get events -o json``): pods that were killed, nodes that went away.

A pod is named by its node where an event says on which node it ran, else by its own name.

References
----------
Kubernetes 1.20 to 1.34, ``v1/Event`` and ``events.k8s.io/v1/Event``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from rca.errors import InvalidInput
from rca.sources.event_windows import small_text, window_of_events, with_events
from rca.sources.logs.failure_tables import one_line, pid_in
from rca.sources.logs.line_kinds import said_by
from rca.sources.logs.log_events import LogEvents
from rca.sources.logs.text_lines import Stamp, time_of
from rca.sources.source import Source
from rca.window.window import Window

_MARKS = re.compile(rb'"(?:involvedObject|regarding)"\s*:')
_ADVICE = "write it with `kubectl get events -o json -n NAMESPACE`"
#: The name of a pod of a job, whose controller numbers its pods.
_NUMBERED = re.compile(r"-\d{1,6}(?:-[a-z0-9]{5})?$")
_ASSIGNED = re.compile(r"assigned \S{1,300}+ to ([\w.-]{1,253}+)$")


class _Reason(NamedTuple):
    event: str
    code: str | None
    #: Text that the message has if it tells of an end.
    needs: str = ""


#: What a reason means; others count if their message is a known line of a log.
_REASONS: Mapping[str, _Reason] = {
    "OOMKilling": _Reason("oom_kill", None),
    "SystemOOM": _Reason("oom_kill", None),
    "Evicted": _Reason("process_exit", "Evicted"),
    "TaintManagerEviction": _Reason("process_exit", "Evicted", "Marking for deletion"),
    "Preempted": _Reason("process_exit", "Preempted"),
    "Preempting": _Reason("process_exit", "Preempted"),
    "NodeShutdown": _Reason("process_exit", "NodeShutdown"),
    "BackOff": _Reason("process_exit", None, "restarting failed container"),
    "NodeNotReady": _Reason("node_down", None),
    "Rebooted": _Reason("node_down", None),
}


def is_events(head: bytes, _: str) -> bool:
    """Whether a file is a list of events, by its first bytes."""
    return head.lstrip()[:1] == b"{" and _MARKS.search(head) is not None


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read events of one job's namespace into a window.

    Raises
    ------
    InvalidInput
        If a file is damaged, or no event tells of an end.
    """
    items = [item for path in paths for item in _items(path)]
    written = max(path.stat().st_mtime for path in paths)
    node_of = {pod: node for item in items for pod, node in _places(item)}
    events = LogEvents()
    for item in _of_job(items):
        _add(events, item, node_of, written)
    if not events.rows:
        names = ", ".join(path.name for path in paths[:3])
        raise InvalidInput(
            f"{names}: none of {len(items)} events tells of an end of a pod or a node",
            hint="Kubernetes keeps events for an hour: write them soon after the job has stopped",
        )
    # Of a pod that fails again and again, the first end counts.
    return window_of_events(events, job_id, written, ())


def _of_job(items: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The events without those of pods beside the job: the pods of a job are numbered, if any pod is."""
    pods = [_text(_about(item), "name") if _about(item).get("kind") == "Pod" else None for item in items]
    if not any(pod and _NUMBERED.search(pod) for pod in pods):
        return items
    return [item for item, pod in zip(items, pods, strict=True) if pod is None or _NUMBERED.search(pod)]


def _add(events: LogEvents, item: Mapping[str, Any], node_of: Mapping[str, str], written: float) -> None:
    reason, message = _text(item, "reason"), _text(item, "message") or _text(item, "note")
    about = _about(item)
    name = _text(about, "name")
    node = node_of.get(name, name) if about.get("kind") == "Pod" else name
    time = next((at for at in (time_of(each, written) for each in _times(item)) if np.isfinite(at)), written)
    stamp, known = Stamp(time, 0, True), _REASONS.get(reason)
    text = f"{reason}: {message}"
    if known is not None and known.needs in message:
        events.append(stamp, known.event, text, code=known.code, node=node or None, pid=pid_in(message))
    elif known is None and (said := said_by(message)) is not None and said.kind.event != "log":
        place = said.node or node or None
        events.append(stamp, said.kind.event, text, code=said.code, node=place, device=said.device)


def _places(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pod of an event with its node, if the event says it."""
    about = _about(item)
    if about.get("kind") != "Pod":
        return []
    assigned = _ASSIGNED.search(_text(item, "message") or _text(item, "note"))
    source = item.get("source")
    node = assigned[1] if assigned else _text(source, "host") if isinstance(source, dict) else ""
    return [(_text(about, "name"), node)] if node else []


def _times(item: Mapping[str, Any]) -> list[str]:
    return [_text(item, name) for name in ("firstTimestamp", "eventTime", "deprecatedFirstTimestamp")] + [
        _text(item, "lastTimestamp")
    ]


def _about(item: Mapping[str, Any]) -> Mapping[str, Any]:
    found = item.get("involvedObject") or item.get("regarding")
    return found if isinstance(found, dict) else {}


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return one_line(value) if isinstance(value, str) else ""


def _items(path: Path) -> list[Mapping[str, Any]]:
    try:
        content = orjson.loads(small_text(path))
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path.name} is no complete JSON document: {error}", hint=_ADVICE) from None
    items = content.get("items", [content]) if isinstance(content, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidInput(f"{path.name} is no list of events of Kubernetes", hint=_ADVICE)
    return items


SOURCE = Source(
    name="kubernetes-events",
    title="events of a job's namespace in Kubernetes: `kubectl get events -o json`",
    tells="for a stopped job: pods that were killed, evicted or preempted, and nodes that went away",
    lacks="ranks, speed and hardware; events older than an hour, which Kubernetes deletes",
    recognises=is_events,
    read=read,
    late_marks=_MARKS,
    join=with_events,
)
