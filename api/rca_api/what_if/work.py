"""Computing a what-if answer, in a process of the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import orjson
import pyarrow as pa

from rca.errors import InvalidInput, TooLarge
from rca.whatif.analysis import analysed_scenarios, what_if
from rca.whatif.memory import refuse_large_source
from rca.whatif.report import Extras, document
from rca.whatif.result import finite
from rca.window.times.phases import distinct_steps
from rca.window.window import Window
from rca_api.shell.processes.process import Context
from rca_api.shell.requests.decoding import Limits, Sent
from rca_api.what_if.body import decode

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
