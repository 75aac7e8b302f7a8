"""From a received window or trace to an encoded what-if answer, off the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

import orjson
import pyarrow as pa
from fastapi import Request

from rca.errors import InvalidInput, InvalidTrace
from rca.whatif.analysis import what_if
from rca.whatif.result import WhatIf, finite
from rca_api.limits import content_encoding, decompress, read_body
from rca_api.negotiation import choose
from rca_api.state import State
from rca_api.windows import JSON, WINDOW_TYPES, Limits, content_type_of, decode_window, media_type

PARQUET = "application/vnd.apache.parquet"
TAKEN = (*WINDOW_TYPES, PARQUET)

Form = Literal["full", "published"]


@dataclass(frozen=True)
class Wanted:
    """How the caller wants its answer, and the sizes of the job where the body is a bare trace."""

    form: Form
    per_step: bool
    sizes: dict[str, int]


async def answer(request: Request, wanted: Wanted) -> bytes:
    """Answer one request."""
    state = State.of(request)
    choose(request.headers.get("accept"), (JSON,))
    content_type = content_type_of(request, TAKEN)
    encoding = content_encoding(request)
    limits = Limits.of(state.settings, content_type)
    with state.admission.enter() as ticket:
        state.metrics.in_progress.inc()
        try:
            body = await read_body(request, ticket, limits.sent, state.settings.body_timeout_seconds)

            def work() -> bytes:
                plain = decompress(body, encoding, limits.decoded)
                return _encoded(_analysed(plain, content_type, wanted, limits.decoded), wanted)

            return await asyncio.get_running_loop().run_in_executor(state.threads, work)
        finally:
            state.metrics.in_progress.dec()


def _analysed(body: bytes, content_type: str, wanted: Wanted, max_bytes: int) -> WhatIf:
    if not body:
        raise InvalidInput("the body is empty", hint="send a window, or an operation trace as Parquet")
    if media_type(content_type) == PARQUET:
        table = _parquet(body, max_bytes)
        return what_if(table, wanted.sizes, correct_clocks=wanted.form != "published")
    if wanted.sizes:
        raise InvalidInput("sizes are parameters of bare traces; a window carries its own in job.parallelism")
    window = decode_window(body, content_type, max_bytes)
    return what_if(window, correct_clocks=wanted.form != "published")


def _parquet(body: bytes, max_bytes: int) -> pa.Table:
    """Read a trace, refusing by what the file says it unpacks to."""
    import pyarrow.parquet as pq

    from rca.errors import TooLarge
    from rca.whatif.reader import COLUMNS, require_columns

    try:
        file = pq.ParquetFile(pa.BufferReader(body))
        groups = range(file.metadata.num_row_groups)
        declared = sum(file.metadata.row_group(group).total_byte_size for group in groups)
        held = [name for name in COLUMNS if name in file.schema_arrow.names]
        # Dictionary and run-length pages unpack to far more than they declare; rows bound that.
        if max(declared, file.metadata.num_rows * 8 * len(held)) > max_bytes:
            raise TooLarge(f"the trace unpacks to more; the limit is {max_bytes:,} bytes")
        require_columns(held)
        return file.read(columns=held)
    except (OSError, pa.ArrowException) as error:
        raise InvalidTrace(f"the body is not a readable Parquet trace: {error}") from error


def _encoded(result: WhatIf, wanted: Wanted) -> bytes:
    if wanted.form == "published":
        return orjson.dumps(finite(result.published()))
    return orjson.dumps(result.to_dict(per_step=wanted.per_step))
