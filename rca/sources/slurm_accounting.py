"""Slurm's accounting of one job (``sacct``): how the job and its steps ended, when and on which node.

References
----------
SchedMD, "sacct", Slurm 20.11 to 25.05: ``--parsable``, ``--parsable2`` and the table with a line of dashes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rca.errors import InvalidInput
from rca.sources.event_windows import small_text, window_of_events, with_events
from rca.sources.logs.failure_tables import ONE_STOP, one_line
from rca.sources.logs.log_events import LogEvents
from rca.sources.logs.text_lines import Stamp, time_of
from rca.sources.source import Source
from rca.window.window import Window

_HEADER = re.compile(rb"^(?=[^\n]{0,4000}\bState\b)\s{0,200}(?:[A-Za-z]{1,40}[| ]+){0,60}?JobID(?:Raw)?\b")
_ADVICE = "write it with `sacct -P -j JOB -o JobID,State,ExitCode,End,NodeList,FailedNode`"
#: States of a job that ended without a fault of its processes, and the reason.
_ENDED = {"TIMEOUT": "TIME LIMIT", "DEADLINE": "TIME LIMIT", "PREEMPTED": "PREEMPTION", "CANCELLED": None}
_FAILED = ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL")
_COMPLETED = "COMPLETED"
#: Slurm cuts texts at the width of their column, and shows it with a plus sign.
_CUT = "+"
_JSON = re.compile(rb'"(?:derived_exit_code|association)"\s*:')
#: Seconds of a year after 2900 are none of an end.
MAX_NUMBER = 1 << 35
_NO_NODE = frozenset({"", "None", "none", "None assigned"})


def is_accounting(head: bytes, _: str) -> bool:
    """Whether a file is a table of sacct, or its JSON, by its first bytes."""
    listed = head.lstrip()[:1] == b"{" and _JSON.search(head) is not None
    return listed or _HEADER.match(head) is not None


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the accounting of one job into a window with events.

    Steps that failed shortly before the job ended count; the job's own row and its batch script only if no
    step did. What failed when Slurm had ended the job is left out.

    Raises
    ------
    InvalidInput
        If a file has no row, or the rows are of several jobs.
    """
    rows = [row for path in paths for row in _rows(path)]
    names = ", ".join(path.name for path in paths[:3])
    jobs = sorted({_job_of(row) for row in rows})
    if len(jobs) > 1:
        raise InvalidInput(
            f"{names}: rows of {len(jobs)} jobs: {', '.join(jobs[:3])}", hint="give `sacct -j` one job"
        )
    written = max(path.stat().st_mtime for path in paths)
    ends = [row for row in rows if "." not in row["jobid"] and _state(row) in _ENDED]
    ended = min((_end(row, written) for row in ends if _ENDED[_state(row)]), default=np.inf)
    whole = {_state(row) for row in rows if "." not in row["jobid"]}
    failed = [row for row in rows if _state(row) in _FAILED and _end(row, written) < ended]
    if whole and not whole & {*_FAILED, *_ENDED}:
        failed = []  # A step failed, and the job went on.
    last = max((_end(row, written) for row in failed), default=-np.inf)
    failed = [row for row in failed if _end(row, written) >= last - ONE_STOP]
    own = [row for row in failed if re.search(r"\.\d+$", row["jobid"])] or failed
    events = LogEvents()
    for row in own or ends or [row for row in rows if _state(row) == _COMPLETED]:
        _add(events, row, written)
    if not events.rows:
        states = ", ".join(sorted({_state(row) for row in rows})[:3])
        raise InvalidInput(f"{names}: no step of the job has ended: {states}", hint=_ADVICE)
    notes = ["times without a zone are taken for UTC"]
    if all(event.node is None for event in events.rows):
        notes.append(f"no row names the node that failed: {_ADVICE}")
    return window_of_events(events, job_id, written, notes)


def _add(events: LogEvents, row: Mapping[str, str], written: float) -> None:
    state = _state(row)
    stamp = Stamp(_end(row, written), 0, True)
    node = next((row[name] for name in ("failednode", "nodelist") if _is_one_node(row.get(name))), None)
    message = f"{row['jobid']} {row['state']} {row.get('exitcode', '')}".strip()
    if state in _ENDED:
        events.append(stamp, "job_ended", message, code=_ENDED[state])
    elif state in ("NODE_FAIL", "BOOT_FAIL") and node is not None:
        events.append(stamp, "node_down", message, node=node)
    elif state in ("NODE_FAIL", "BOOT_FAIL"):
        events.append(stamp, "job_ended", message, code="NODE FAILURE")
    elif state == "OUT_OF_MEMORY":
        events.append(stamp, "process_exit", message, code="OutOfMemory", node=node)
    else:
        events.append(stamp, "process_exit", message, code=_code(row.get("exitcode", "")), node=node)


def _end(row: Mapping[str, str], written: float) -> float:
    """When the job or step ended, Unix seconds; the time of the file without one."""
    time = time_of(row.get("end", ""), written)
    return time if np.isfinite(time) else written


def _code(text: str) -> str | None:
    """The exit code, negative for a signal; sacct writes both with a colon."""
    code, _, signal = text.partition(":")
    if signal.isdecimal() and int(signal):
        return f"-{int(signal)}"
    return code if code.isdecimal() else None


def _is_one_node(text: str | None) -> bool:
    return text is not None and text not in _NO_NODE and not re.search(r"[\[\],\s+]", text)


def _state(row: Mapping[str, str]) -> str:
    """The state in full; `CANCELLED by 1000` and cut ones included."""
    word = row["state"].split(" ")[0]
    known = (*_ENDED, *_FAILED, _COMPLETED)
    begin = word.removesuffix(_CUT)
    return next((each for each in known if word.endswith(_CUT) and each.startswith(begin)), begin)


def _job_of(row: Mapping[str, str]) -> str:
    return row["jobid"].partition(".")[0].removesuffix(_CUT)


def _rows(path: Path) -> list[dict[str, str]]:
    """Rows of a table by the names of their columns, in small letters."""
    text = small_text(path)
    if text.lstrip().startswith("{"):
        return _json_rows(path, text)
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    if "|" in lines[0]:
        parts = [line.split("|") for line in lines]
    else:
        rule = lines[1] if len(lines) > 1 and set(lines[1].split()) and not lines[1].strip("- ") else None
        if rule is None:
            raise InvalidInput(f"{path.name}: the columns of sacct cannot be told apart", hint=_ADVICE)
        places = [found.span() for found in re.finditer("-+", rule)]
        parts = [[line[begin:end] for begin, end in places] for line in (lines[0], *lines[2:])]
    names = [name.strip().lower() for name in parts[0]]
    names = ["jobid" if name == "jobidraw" and "jobid" not in names else name for name in names]
    rows = [{name: one_line(value) for name, value in zip(names, row, strict=False)} for row in parts[1:]]
    whole = [row for row in rows if row.get("jobid") and row.get("state")]
    if not whole:
        raise InvalidInput(f"{path.name} has no row of a job with its state", hint=_ADVICE)
    return whole


def _json_rows(path: Path, text: str) -> list[dict[str, str]]:
    """Rows of ``sacct --json``: of each job and of its steps."""
    try:
        content = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path.name} is no complete JSON document: {error}", hint=_ADVICE) from None
    jobs = content.get("jobs") if isinstance(content, dict) else None
    rows = []
    for job in jobs if isinstance(jobs, list) else []:
        if not isinstance(job, dict):
            continue
        name = one_line(str(job.get("job_id", "")))
        rows.append(_json_row(name, job))
        steps = job.get("steps")
        for number, step in enumerate(steps if isinstance(steps, list) else []):
            if isinstance(step, dict):
                identity = _at(step, "step", "id")
                own = identity if isinstance(identity, str) else _at(step, "step", "id", "step_id")
                suffix = str(number if own is None else own).rpartition(".")[2]
                rows.append(_json_row(f"{name}.{one_line(suffix)}", step))
    whole = [row for row in rows if row["jobid"] and row["state"]]
    if not whole:
        raise InvalidInput(f"{path.name} has no job with its state", hint=_ADVICE)
    return whole


def _json_row(name: str, item: Mapping[str, Any]) -> dict[str, str]:
    state = item.get("state")
    state = state.get("current") if isinstance(state, dict) else state
    state = state[0] if isinstance(state, list) and state else state
    code, signal = _at(item, "exit_code", "return_code"), _at(item, "exit_code", "signal")
    signal = signal.get("id", signal.get("signal_id")) if isinstance(signal, dict) else signal
    end, nodes = _at(item, "time", "end"), item.get("nodes")
    nodes = _at(item, "nodes", "range") if isinstance(nodes, dict) else nodes
    ended = _whole(end)
    return {
        "jobid": name,
        "state": state if isinstance(state, str) else "",
        "exitcode": f"{_whole(code)}:{_whole(signal)}",
        "end": datetime.fromtimestamp(ended, UTC).isoformat() if ended else "",
        "nodelist": one_line(nodes) if isinstance(nodes, str) else "",
        "failednode": one_line(str(item.get("failed_node") or "")),
    }


def _at(item: object, *names: str) -> Any:
    for name in names:
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _whole(value: object) -> int:
    """A number of Slurm, which newer versions write as an object; 0 without one."""
    number = value.get("number") if isinstance(value, dict) else value
    return number if isinstance(number, int) and 0 <= number < MAX_NUMBER else 0


SOURCE = Source(
    name="sacct",
    title="Slurm's accounting of one job: `sacct -P -j JOB -o JobID,State,ExitCode,End,NodeList,FailedNode`, "
    "or `sacct --json -j JOB`",
    tells="for a stopped job: how its steps ended, and on which node, if each node has a step of its own",
    lacks="ranks, speed and hardware; which node of a step on several nodes failed",
    recognises=is_accounting,
    late_marks=_JSON,
    read=read,
    join=with_events,
)
