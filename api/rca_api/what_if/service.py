"""From a received window or trace to an encoded what-if answer, off the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

import orjson
import pyarrow as pa
from fastapi import Request

from rca.errors import InvalidInput, TooLarge
from rca.telemetry.window import Window
from rca.whatif.analysis import what_if
from rca.whatif.report import Extras, document
from rca.whatif.result import finite
from rca.whatif.scenarios import analysed_scenarios
from rca_api.limits import content_encoding, decompress, read_body
from rca_api.negotiation import choose
from rca_api.state import State
from rca_api.what_if.body import PARQUET, decode
from rca_api.windows import JSON, WINDOW_TYPES, Limits, content_type_of

MOST_REPLAYED = 1_000_000_000
"""Rows times scenarios of one request, about half a minute of one core."""

TAKEN = (*WINDOW_TYPES, PARQUET)

Form = Literal["full", "published"]


@dataclass(frozen=True)
class Wanted:
    """How the caller wants its answer, and the sizes of the job where the body is a bare trace."""

    form: Form
    per_step: bool
    worker_steps: bool
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
                return _answer(plain, content_type, wanted, limits.decoded)

            return await asyncio.get_running_loop().run_in_executor(state.threads, work)
        finally:
            state.metrics.in_progress.dec()


def _answer(body: bytes, content_type: str, wanted: Wanted, max_bytes: int) -> bytes:
    asked = decode(body, content_type, max_bytes)
    if isinstance(asked.source, Window) and wanted.sizes:
        raise InvalidInput("sizes are parameters of bare traces; a window carries its own in job.parallelism")
    if wanted.form == "published":
        if asked.scenarios is not None or wanted.worker_steps:
            raise InvalidInput("the published layout has no scenarios and no worker_steps", hint="form=full")
        # The published tool leaves skewed clocks alone: numbers to compare with its own must too.
        result = what_if(asked.source, wanted.sizes, correct_clocks=False)
        return orjson.dumps(finite(result.published()))
    described = asked.scenarios or []
    _refuse_long_replays(asked.source, len(described))
    result, seconds = analysed_scenarios(asked.source, described, wanted.sizes)
    extras = Extras(
        per_step=wanted.per_step,
        worker_steps=wanted.worker_steps,
        scenarios=described,
        scenario_seconds=seconds if asked.scenarios is not None else None,
    )
    return orjson.dumps(document(result, extras))


def _refuse_long_replays(source: Window | pa.Table, n_scenarios: int) -> None:
    """Every scenario replays the job: bound what one request may cost."""
    rows = (
        source.num_rows if isinstance(source, pa.Table) else max(source.ops.num_rows, source.steps.num_rows)
    )
    if n_scenarios * rows > MOST_REPLAYED:
        raise TooLarge(
            f"{n_scenarios:,} scenarios of {rows:,} rows; one request may replay {MOST_REPLAYED:,} rows",
            hint="send fewer scenarios at once, or fewer steps",
        )
