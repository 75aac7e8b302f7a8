"""What a rank collected, as the JSON document of a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rca.collect.counters import SERIES
from rca.collect.identity import Identity
from rca.collect.segments import Array
from rca.collect.timers import COLUMNS

_START: Final = COLUMNS.index("start_time")
_STEP_SECONDS: Final = COLUMNS.index("step_seconds")
_PHASES: Final = slice(_START + 1, _STEP_SECONDS)
#: Without a value these columns are sent as well.
_ALWAYS: Final = ("start_time", "step_seconds")


def fragment(
    identity: Identity,
    header: Mapping[str, Any],
    rows: Array,
    samples: Array,
    events: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """A rank's rows, samples and events as the document of a window."""
    times = [*rows[:, _START].tolist(), *samples[:, 0].tolist(), *(event["time"] for event in events)]
    # A step in progress has no duration yet, but its phases that are over have.
    spent = np.fmax(rows[:, _STEP_SECONDS], np.nansum(rows[:, _PHASES], axis=1))
    ends = (rows[:, _START] + spent).tolist()
    end = max([*times, *ends])
    place = {"rank": identity.rank, "node": identity.node}
    document: dict[str, Any] = {
        "job": {
            "job_id": identity.job_id,
            "world_size": identity.world_size,
            "ranks": [place | ({} if identity.gpu is None else {"gpu": identity.gpu})],
            "start": min(times),
            "end": end + 1e-3,
            **header,
        }
    }
    if len(rows):
        steps: dict[str, Any] = {
            "rank": [identity.rank] * len(rows),
            "step": rows[:, 0].astype(int).tolist(),
        }
        for number, name in enumerate(COLUMNS[1:], start=1):
            if name in _ALWAYS or np.isfinite(rows[:, number]).any():
                steps[name] = _numbers(rows[:, number])
        if identity.attempt is not None:
            steps["attempt"] = [identity.attempt] * len(rows)
        document["steps"] = steps
    if len(samples):
        moments = samples[:, 0].tolist()
        document["metrics"] = [
            {
                "name": name,
                **place,
                **({} if device is None else {"device": device}),
                "times": at,
                "values": of,
            }
            for number, (name, device) in enumerate(SERIES, start=1)
            for at, of in [_known(moments, samples[:, number])]
            if of
        ]
    if events:
        kept = ("time", "kind", "code", "message")
        document["events"] = [
            {name: event[name] for name in kept if event.get(name) is not None} | place for event in events
        ]
    return document


def _numbers(values: Array) -> list[float | None]:
    return [value if value == value else None for value in values.tolist()]


def _known(times: Sequence[float], values: Array) -> tuple[list[float], list[float]]:
    pairs = [(at, value) for at, value in zip(times, values.tolist(), strict=True) if value == value]
    return [at for at, _ in pairs], [value for _, value in pairs]
