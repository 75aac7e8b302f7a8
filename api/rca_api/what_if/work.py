"""Decoding a what-if request and computing its answer, in a process of the pool.

A request is a window or a bare trace, and scenarios. Scenarios are a member ``scenarios`` of a JSON window,
or a part ``scenarios`` (``application/json``) of a multipart body. The other parts are those of an Arrow
window, or one part ``trace`` (Parquet).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import orjson
import pyarrow as pa

from rca.errors import InvalidInput, InvalidTrace, InvalidWindow, TooLarge
from rca.whatif.analysis import analysed_scenarios, described_all, what_if
from rca.whatif.memory import refuse_large_source
from rca.whatif.report import Extras, document
from rca.whatif.result import finite
from rca.whatif.scenario import Scenario
from rca.whatif.trace.reader import open_trace
from rca.window.encodings.json_text import MEMORY_PER_BYTE, parsed_json, uncollected
from rca.window.encodings.multipart import boundary_of, split_parts
from rca.window.rows.row_errors import shown
from rca.window.schema import SPECS
from rca.window.times.phases import distinct_steps
from rca.window.window import Window
from rca_api.shell.processes.process import Context
from rca_api.shell.requests.decoding import MULTIPART, Limits, Sent, decode_window, media_type

PARQUET = "application/vnd.apache.parquet"
SCENARIOS = "scenarios"
TRACE = "trace"

_PARTS = ("job", *SPECS, SCENARIOS, TRACE)
_REBUILT = "rca-window-without-scenarios-3b8e21c94d7f"


@dataclass(frozen=True)
class WhatIfRequest:
    """A decoded request; `scenarios` is None if none were sent."""

    source: Window | pa.Table
    scenarios: list[Scenario] | None


def decode(body: bytes, content_type: str, limits: Limits) -> WhatIfRequest:
    """Decode and validate a body.

    Raises
    ------
    InvalidInput
        With the place of the error, in any part.
    """
    if not body:
        raise InvalidInput("the body is empty", hint="send a window, or an operation trace as Parquet")
    kind = media_type(content_type)
    if kind == PARQUET:
        return WhatIfRequest(_parquet(body, limits.decoded), None)
    if kind == MULTIPART:
        return _multipart(body, content_type, limits)
    if f'"{SCENARIOS}"'.encode() in body:
        return _json(body, limits)
    return WhatIfRequest(decode_window(body, content_type, limits), None)


def _parsed_scenarios(sent: bytes | memoryview, limits: Limits) -> Any:
    try:
        return parsed_json(sent, SCENARIOS, max_memory=limits.json)
    except InvalidWindow as error:
        # They are no part of a window.
        raise InvalidInput(f"{SCENARIOS}: {error.message}", hint=error.hint) from None


def _json(body: bytes, limits: Limits) -> WhatIfRequest:
    with uncollected():
        document = parsed_json(body, "window", max_memory=MEMORY_PER_BYTE * limits.json)
        if not isinstance(document, dict) or SCENARIOS not in document:
            return WhatIfRequest(Window.from_document(document), None)
        scenarios = described_all(document.pop(SCENARIOS))
        return WhatIfRequest(Window.from_document(document), scenarios)


def _multipart(body: bytes, content_type: str, limits: Limits) -> WhatIfRequest:
    parts: dict[str, memoryview] = {}
    for name, content in split_parts(body, boundary_of(body, content_type)):
        if name in parts or name not in _PARTS:
            raise InvalidWindow(
                f"has {'two parts' if name in parts else 'an unknown part'} named {shown(name)!r}",
                table="window",
                column=name,
                expected="parts " + ", ".join(_PARTS),
            )
        parts[name] = content
    sent = parts.pop(SCENARIOS, None)
    scenarios = None
    if sent is not None:
        scenarios = described_all(_parsed_scenarios(sent, limits))
    if TRACE in parts:
        if len(parts) > 1:
            others = ", ".join(sorted(set(parts) - {TRACE}))
            raise InvalidInput(
                f"besides a bare trace only the part {SCENARIOS} is allowed; the body has {others}"
            )
        return WhatIfRequest(_parquet(bytes(parts[TRACE]), limits.decoded), scenarios)
    if sent is None:
        return WhatIfRequest(decode_window(body, content_type, limits), None)
    window = decode_window(_joined(parts), f"{MULTIPART}; boundary={_REBUILT}", limits)
    return WhatIfRequest(window, scenarios)


def _joined(parts: dict[str, memoryview]) -> bytes:
    """A body of the remaining parts, for the window's own decoder."""
    pieces: list[bytes | memoryview] = []
    for name, content in parts.items():
        head = f'Content-Disposition: form-data; name="{name}"\r\nContent-Length: {len(content)}'
        pieces += [f"--{_REBUILT}\r\n{head}\r\n\r\n".encode(), content, b"\r\n"]
    return b"".join([*pieces, f"--{_REBUILT}--\r\n".encode()])


def _parquet(body: bytes, max_bytes: int) -> pa.Table:
    """Read a trace, or refuse it by the decompressed size that the file declares."""
    try:
        file, held = open_trace(pa.BufferReader(body))
        groups = range(file.metadata.num_row_groups)
        declared = sum(file.metadata.row_group(group).total_byte_size for group in groups)
        # Dictionary and run-length pages are far larger than declared; the number of rows bounds them.
        if max(declared, file.metadata.num_rows * 8 * len(held)) > max_bytes:
            raise TooLarge(f"the trace is larger after decompression; the limit is {max_bytes:,} bytes")
        return file.read(columns=held)
    except (OSError, pa.ArrowException) as error:
        raise InvalidTrace(f"the body is not a readable Parquet trace: {error}") from error


MAX_REPLAYED = 1_000_000_000
"""Most rows times scenarios of one request: about half a minute of one core."""
STAGE_REPLAYS = 3
"""Scenarios that take as long as the replay of one pipeline stage."""

Form = Literal["full", "published"]


@dataclass(frozen=True)
class WhatIfOptions:
    """Options of the answer, and the parallelism of the job if the body is a bare trace."""

    form: Form
    per_step: bool
    worker_steps: bool
    sizes: dict[str, int]


def answer(context: Context, sent: Sent, wanted: WhatIfOptions) -> bytes:
    """Decode a window or a trace with its scenarios, and replay it."""
    with context.stage("decompress"):
        plain = sent.plain()
    return answered(plain, sent.content_type, wanted, sent.limits, context.max_memory_bytes)


def answered(
    body: bytes, content_type: str, wanted: WhatIfOptions, limits: Limits, max_memory: int | None = None
) -> bytes:
    """Answer a decompressed body within `max_memory` bytes."""
    request = decode(body, content_type, limits)
    del body
    if isinstance(request.source, Window) and wanted.sizes:
        raise InvalidInput("sizes are parameters for bare traces; a window has them in job.parallelism")
    if wanted.form == "published":
        if request.scenarios is not None or wanted.worker_steps:
            raise InvalidInput("the published layout has no scenarios and no worker_steps", hint="form=full")
        # The published tool does not correct clocks, and these numbers are compared with it.
        result = what_if(request.source, wanted.sizes, correct_clocks=False, max_memory_bytes=max_memory)
        return orjson.dumps(finite(result.published()))
    described = request.scenarios or []
    refuse_long_replays(request.source, len(described))
    refuse_large_source(request.source, max_memory, worker_steps=wanted.worker_steps)
    result, seconds = analysed_scenarios(request.source, described, wanted.sizes, max_memory_bytes=max_memory)
    extras = Extras(
        per_step=wanted.per_step,
        worker_steps=wanted.worker_steps,
        scenarios=described,
        scenario_seconds=seconds if request.scenarios is not None else None,
    )
    return orjson.dumps(document(result, extras))


def refuse_long_replays(source: Window | pa.Table, n_scenarios: int) -> None:
    """Refuse a request that replays too much: every scenario and every pipeline stage replays the job.

    Raises
    ------
    TooLarge
        For more than `MAX_REPLAYED` rows altogether.
    """
    n_stages = 0
    if isinstance(source, pa.Table):
        rows = source.num_rows
    elif source.ops.num_rows:
        rows = source.ops.num_rows
    else:
        rows = source.job.world_size * distinct_steps(source.steps.column("step").to_numpy())[0].size
        n_stages = source.job.topology.n_stages
    replays = n_scenarios + (STAGE_REPLAYS * n_stages if n_stages > 1 else 0)
    if replays * rows > MAX_REPLAYED:
        of_stages = f" and {n_stages:,} stages" if n_stages > 1 else ""
        raise TooLarge(
            f"{n_scenarios:,} scenarios{of_stages} of {rows:,} rows; one request may replay "
            f"{MAX_REPLAYED:,} rows",
            hint="send fewer scenarios at once, or fewer steps",
        )
