"""The body of a what-if request: a window or a bare trace, and scenarios.

Scenarios are a member ``scenarios`` of a JSON window, or a part ``scenarios`` (``application/json``) of a
multipart body. The other parts are those of an Arrow window, or one part ``trace`` (Parquet).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rca.errors import InvalidInput, InvalidTrace, InvalidWindow, TooLarge
from rca.whatif.analysis import described_all
from rca.whatif.scenario import Scenario
from rca.whatif.trace.reader import open_trace
from rca.window.encodings.json_text import MEMORY_PER_BYTE, parsed_json, uncollected
from rca.window.encodings.multipart import boundary_of, split_parts
from rca.window.rows.row_errors import shown
from rca.window.schema import SPECS
from rca.window.window import Window
from rca_api.shell.requests.decoding import MULTIPART, Limits, decode_window, media_type

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
