"""Peak memory and time of the worst bodies, each in a process of its own, with the default limits."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rca.errors import RcaError
from rca_api.diagnoses import work
from rca_api.shell.requests.decoding import Body, Sent
from rca_api.shell.requests.request_bodies import limits_of
from rca_api.shell.settings.settings import Settings
from tests.for_each import for_each

pytestmark = pytest.mark.slow

MEGABYTE = 1 << 20
#: What a warm process of the pool takes before it reads a body.
WARM = 200 * MEGABYTE
START = 1_700_000_000
JSON, FORM = "application/json", "multipart/form-data; boundary=x"


def repeated(unit: str, megabytes: float) -> str:
    return unit * int(megabytes * MEGABYTE / len(unit))


def window(*, job: str = "", more: str = "") -> bytes:
    """A small JSON window with more members in its job, and more tables."""
    steps = '{"rank":[0,1],"step":[0,0],"start_time":[1700000000,1700000000],"step_seconds":[1,1]}'
    fields = f'"format":1,"job_id":"j","world_size":900000,"start":{START},"end":{START + 9}'
    return f'{{"job":{{{fields}{job}}},"steps":{steps}{more}}}'.encode()


def form(**parts: bytes) -> bytes:
    job = {"format": 1, "job_id": "j", "world_size": 4, "start": START, "end": START + 9}
    held = {"job": json.dumps(job).encode()} | parts
    pieces = [
        b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), part)
        for name, part in held.items()
    ]
    return b"".join(pieces) + b"--x--\r\n"


def stream(columns: dict[str, Any], compression: str | None = None) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def narrow_steps(rows: int) -> bytes:
    number = np.arange(rows)
    phases = ("step", "forward", "backward", "optimizer", "data_loading", "checkpoint", "gc")
    columns = {f"{phase}_seconds": np.full(rows, 1e-6, np.float32) for phase in phases}
    return stream(
        {"rank": (number % 4).astype("i1"), "step": number // 4, "start_time": number * 0} | columns
    )


def distinct_texts(rows: int) -> bytes:
    numbers = pa.array(np.arange(rows))
    return stream({"time": np.full(rows, START), "kind": numbers.cast(pa.string())}, "zstd")


def one_text(length: int) -> bytes:
    return stream({"time": [START], "kind": ["a" * length]})


PLACE = '{"rank":0},'
DEEP = "[" * 900 + "]" * 900 + ","
N_SAMPLES = 2 * MEGABYTE
TIMES, VALUES = ",".join(["1700000001"] * N_SAMPLES), ",".join("1" * N_SAMPLES)


# Each is as large as the limits allow, or it is refused. All travel compressed, in a few kilobytes.
BODIES: dict[str, Callable[[], tuple[str, bytes]]] = {
    "objects below the estimate": lambda: (JSON, window(more=f',"x":[{repeated("{},", 6)}0]')),
    "one place again and again": lambda: (JSON, window(job=f',"ranks":[{repeated(PLACE, 6)}{PLACE[:-1]}]')),
    "nested values": lambda: (JSON, window(more=f',"ops":{{"rank":[{repeated(DEEP, 6)}0]}}')),
    "a long wide text": lambda: (
        JSON,
        window(more=f',"events":[{{"time":{START},"kind":"{repeated("a", 36)}é"}}]'),
    ),
    "samples": lambda: (
        JSON,
        window(more=f',"metrics":[{{"name":"a","times":[{TIMES}],"values":[{VALUES}]}}]'),
    ),
    "narrow steps": lambda: (FORM, form(steps=narrow_steps(3_200_000))),
    "distinct texts": lambda: (FORM, form(steps=narrow_steps(4), events=distinct_texts(9_000_000))),
    "one text": lambda: (FORM, form(steps=narrow_steps(4), events=one_text(250 * MEGABYTE))),
}


class Context:
    """As much of a process of the pool as reading a body needs."""

    windows = types.SimpleNamespace(put=lambda _: types.SimpleNamespace(digest="0", n_bytes=0))

    def stage(self, _: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def read(name: str) -> dict[str, Any]:
    """Read one body; gives what it cost."""
    content_type, body = BODIES[name]()
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    packed = packer.compress(body) + packer.flush()
    del body
    limits = limits_of(Settings(), content_type)
    sent = Sent(Body(packed, None), content_type, "gzip", limits)
    Path("/proc/self/clear_refs").write_text("5")
    before, began = status("VmRSS"), time.process_time()
    outcome = "accepted"
    try:
        work.accept_window(Context(), sent)  # type: ignore[arg-type]
    except RcaError as error:
        outcome = error.code
    return {"outcome": outcome, "memory": status("VmHWM") - before, "seconds": time.process_time() - began}


def main() -> None:
    """Read each body in a process of its own, forked from this one; prints one line of JSON for each."""
    for name in BODIES:
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            print(json.dumps({"name": name} | read(name)), flush=True)
            os._exit(0)
        assert os.waitpid(process, 0)[1] == 0


@pytest.fixture(scope="module")
def costs() -> dict[str, dict[str, Any]]:
    ran = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    return {each.pop("name"): each for each in map(json.loads, ran.stdout.splitlines())}


@pytest.mark.long
@for_each("name", BODIES)
def test_no_body_takes_more_than_a_gibibyte(costs: dict[str, dict[str, Any]], name: str) -> None:
    cost = costs[name]
    assert cost["outcome"] in ("accepted", "too-large", "invalid-window", "invalid-input")
    assert WARM + cost["memory"] < 1024 * MEGABYTE, cost
    # Of one core; a body that is refused takes one or two.
    assert cost["seconds"] < 10, cost


if __name__ == "__main__":
    main()
