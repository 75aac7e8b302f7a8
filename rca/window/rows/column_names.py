"""Names of columns as people write them: `global_rank`, `Iter Time [ms]`, `fwd_us`.

A name is split into words. Words of a unit at its end give the unit. What is left names the quantity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rca.window.schema import EVENTS, METRICS, STEPS, TableSpec

_UNITS: Mapping[str, float] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "usecs", "micros", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanosecond", "nanoseconds"), 1e-9),
}
#: In messages.
NAME_OF_UNIT = {1.0: "seconds", 1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds"}
#: Columns of points in time: Unix seconds.
TIMES = frozenset({"start_time", "time", "waiting_since", "start_ts"})
SECONDS = "_seconds"
#: Words that say that a number is a duration, and those between them and what takes the time.
_OF_DURATIONS = frozenset({"time", "duration", "elapsed"})
_PER = "per"
_TIMES: Mapping[str, str] = dict.fromkeys(("timestamp", "ts", "datetime", "date_time"), "time")
_PLACES: Mapping[str, str] = dict.fromkeys(("hostname", "host", "host_name", "node_name"), "node")
_RANKS: Mapping[str, str] = dict.fromkeys(
    ("global_rank", "world_rank", "rank_id", "process_rank", "process_index", "worker_rank"), "rank"
)
_STEPS = ("iteration", "iter", "batch", "train_step", "training_step", "global_step")
#: Other names of the columns of a table; those of its durations are below.
_NAMES: Mapping[str, Mapping[str, str]] = {
    STEPS.name: {
        **_RANKS,
        "worker": "rank",
        **_PLACES,
        **dict.fromkeys(_TIMES, "start_time"),
        **dict.fromkeys(("start", "begin", "begin_time", "step_start", "start_timestamp"), "start_time"),
        **dict.fromkeys(_STEPS, "step"),
        **dict.fromkeys(("step_number", "step_id", "step_idx", "iteration_number", "batch_idx"), "step"),
    },
    METRICS.name: {**_RANKS, **_PLACES, **_TIMES, "metric": "name", "metric_name": "name", "gpu": "device"},
    EVENTS.name: {**_RANKS, **_PLACES, **_TIMES, "event": "kind", "event_type": "kind"},
}
#: Other names of what a step takes time for; `step` is all of it.
_PHASES: Mapping[str, str] = {
    **dict.fromkeys((*_STEPS, "duration"), "step"),
    **dict.fromkeys(("fwd", "forward_pass", "forward_compute"), "forward"),
    **dict.fromkeys(("bwd", "backward_pass", "backward_compute"), "backward"),
    **dict.fromkeys(("data", "data_load", "data_wait", "dataloading"), "data_loading"),
    **dict.fromkeys(("dataloader", "data_loader"), "data_loading"),
    **dict.fromkeys(("comm", "allreduce", "all_reduce", "nccl", "grad_sync"), "communication"),
    **dict.fromkeys(("optim", "optimizer_step"), "optimizer"),
    **dict.fromkeys(("ckpt", "checkpointing", "save_checkpoint"), "checkpoint"),
    "h2d": "host_to_device",
}


class ColumnName(NamedTuple):
    """What the name of a column says.

    Attributes
    ----------
    name : str
        The format's name of it, or the name as it is.
    unit : float or None
        Seconds in the unit that the name states; None where it states none.
    """

    name: str
    unit: float | None


def column_names(spec: TableSpec, names: Sequence[str]) -> list[ColumnName]:
    """The format's names and units of the columns of a table, as far as they are known.

    A column that has a name of the format keeps it. Of several with one meaning, the first one gets it.
    """
    found: list[ColumnName] = []
    taken = {name for name in names if name in spec.by_name}
    for name in names:
        meant = ColumnName(name, None) if name in spec.by_name else _meant(spec, name)
        if name not in spec.by_name and meant.name in taken:
            meant = ColumnName(name, None)
        taken.add(meant.name)
        found.append(meant)
    return found


def _meant(spec: TableSpec, name: str) -> ColumnName:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
    held = re.findall(r"[a-z0-9]+", words)
    known = _NAMES.get(spec.name, {})
    plain = "_".join(held)
    if plain in known or (plain in spec.by_name and not plain.endswith(SECONDS)):
        return ColumnName(known.get(plain, plain), None)
    unit = None
    if held and held[-1] in _UNITS:
        unit = _UNITS[held.pop()]
    elif held[1:2] == [_PER] and held[0] in _UNITS:
        unit = _UNITS[held.pop(0)]
    plain = "_".join(held)
    if unit is not None and (time := known.get(plain, plain)) in TIMES and time in spec.by_name:
        return ColumnName(time, unit)
    if unit is not None or _OF_DURATIONS & set(held):
        rest = [word for word in held if word not in _OF_DURATIONS and word != _PER]
        # "duration" alone is that of the step; "time" and "elapsed" may be anything.
        stem = "_".join(rest) if rest else plain
        duration = _PHASES.get(stem, stem) + SECONDS
        if duration in spec.by_name:
            return ColumnName(duration, unit)
    return ColumnName(name, None)
