"""Processes of a service that really runs, seen from outside: found by their data folder, asked over HTTP."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.waiting import SECONDS, until

__all__ = ["SECONDS", "until"]


def processes_of(data: Path, what: bytes) -> list[int]:
    """Processes of the service with this data folder whose name or command line has `what`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "comm").read_bytes() + (entry / "cmdline").read_bytes()
            if what in name and f"RCA_DATA_DIR={data}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def processor_seconds(process: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    # utime and stime, counted from the process' state.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def computing(data: Path) -> list[int]:
    return processes_of(data, b"rca-compute")


def serving(data: Path) -> list[int]:
    return processes_of(data, b"--serve-on")


def asked(url: str, document: Any = None, headers: dict[str, str] | None = None) -> Any:
    """What the service answers in JSON to a GET, or to a POST of a document."""
    body = None if document is None else json.dumps(document).encode()
    request = Request(url, body, {"Content-Type": "application/json"} | (headers or {}))
    with urlopen(request, timeout=SECONDS) as answer:
        return json.loads(answer.read())


def post(url: str, body: bytes, **headers: str) -> tuple[int, Any]:
    request = Request(f"{url}/v1/diagnoses", body, {"Content-Type": "application/json", **headers})
    with urlopen(request, timeout=SECONDS) as answer:
        return answer.status, json.loads(answer.read())


def stored(url: str, headers: dict[str, str] | None = None) -> list[Any]:
    """All diagnoses, page by page."""
    items: list[Any] = []
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        cursor = f"&cursor={page['next']}" if items else ""
        page = asked(f"{url}/v1/diagnoses?limit=200{cursor}", None, headers)
        items += page["items"]
    return items


def metric(url: str, line: str) -> float:
    text = urlopen(f"{url}/metrics", timeout=SECONDS).read().decode()
    return sum(float(each.rpartition(" ")[2]) for each in text.splitlines() if each.startswith(line))
