"""Synthetic jobs with a known schedule, executed by brute force.

This module does not use the product. Dependencies come from microbatches and chunks, which a trace reader
infers from the order. Times come from relaxing "starts after, ends together" until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

Key = tuple[str, int, int]
"""(type, sequence, stage) of an operation; every data rank runs one."""

WORK = {"forward-compute": 0.030, "backward-compute": 0.055, "optimizer": 0.012, "gc": 0.002}
TRANSFER = {"layernorm-grads-all-reduce": 0.001, "params-all-gather": 0.006, "grads-reduce-scatter": 0.008}


@dataclass
class SyntheticJob:
    """Operations of one step, with their dependencies and the groups that end together."""

    pp: int
    dp: int
    vpp: int
    microbatches: int
    overlap: bool
    dsp: int = 1
    waits: dict[Key, list[Key]] = field(default_factory=dict)
    groups: list[tuple[list[Key], bool]] = field(default_factory=list)
    chunk: dict[Key, int] = field(default_factory=dict)
    batch: dict[Key, int] = field(default_factory=dict)

    @property
    def use_dp(self) -> bool:
        return self.dp * self.dsp > 1

    @property
    def meta(self) -> dict[str, int]:
        return {
            "dp_size": self.dp,
            "pp_size": self.pp,
            "tp_size": 1,
            "dsp_size": self.dsp,
            "vpp_size": self.vpp,
            "world_size": self.dp * self.pp * self.dsp,
        }

    def add(self, key: Key, *after: Key | None) -> Key:
        held = self.waits.setdefault(key, [])
        held += [one for one in after if one is not None and one not in held]
        return key

    def edges(self) -> set[tuple[str, str]]:
        def name(key: Key) -> str:
            return f"{key[0]}_{key[1]}_{key[2]}"

        return {(name(before), name(key)) for key, waits in self.waits.items() for before in waits}


def compute_order(job: SyntheticJob, stage: int) -> list[tuple[str, int, int, int]]:
    """(type, sequence, chunk, microbatch) in the order a stage runs them."""
    v, p = job.vpp, job.pp
    total = job.microbatches * v

    def place(k: int, backward: bool) -> tuple[int, int]:
        chunk = k // p % v if v > 1 else 0
        batch = k // (p * v) * p + k % p if v > 1 else k
        return (v - 1 - chunk if backward else chunk), batch

    warm = p - stage - 1 if v == 1 else (p - stage - 1) * 2 + (v - 1) * p
    warm = min(warm, total)
    order = [("forward-compute", k) for k in range(warm)]
    for k in range(total - warm):
        order += [("forward-compute", warm + k), ("backward-compute", k)]
    order += [("backward-compute", k) for k in range(total - warm, total)]
    return [(kind, k, *place(k, kind == "backward-compute")) for kind, k in order]


def make_job(
    pp: int = 2, dp: int = 2, vpp: int = 1, microbatches: int = 4, *, overlap: bool = False, dsp: int = 1
) -> SyntheticJob:
    job = SyntheticJob(pp, dp, vpp, microbatches, overlap, dsp)
    where: dict[tuple[str, int, int], Key] = {}
    for stage in range(pp):
        _stage(job, stage, where)
    last_model_chunk = vpp * pp - 1
    for (kind, model_chunk, batch), send in sorted(where.items()):
        if not kind.endswith("send"):
            continue
        step = 1 if kind.startswith("forward") else -1
        peer = where.get((kind.replace("send", "recv"), model_chunk + step, batch))
        if 0 <= model_chunk + step <= last_model_chunk:
            assert peer is not None
            job.groups.append(([send, peer], False))
        else:
            job.groups.append(([send], False))
    for (kind, model_chunk, _), recv in where.items():
        step = -1 if kind.startswith("forward") else 1
        if kind.endswith("recv") and not 0 <= model_chunk + step <= last_model_chunk:
            job.groups.append(([recv], False))
    ends = sorted({0, pp - 1})
    job.groups.append(([("embedding-grads-all-reduce", 0, stage) for stage in ends], False))
    job.groups.append(([("optimizer-clip-main-grad", 0, stage) for stage in range(pp)], True))
    for key in job.waits:
        if key[0] in ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"):
            job.groups.append(([key], True))
    return job


def _stage(  # noqa: C901  (the schedule in one place, readable top to bottom)
    job: SyntheticJob, stage: int, where: dict[tuple[str, int, int], Key]
) -> None:
    order = compute_order(job, stage)
    keys: list[Key] = [(kind, k, stage) for kind, k, _, _ in order]
    gathers: list[Key] = []
    if job.use_dp:
        for chunk in range(job.vpp):
            gather = job.add(("params-all-gather", chunk, stage), *(gathers[-1:] or [None]))
            job.chunk[gather] = chunk
            gathers.append(gather)
    previous: Key | None = None
    last_of_type: dict[str, Key] = {}
    seen: dict[int, bool] = {}
    for key, (kind, k, chunk, batch) in zip(keys, order, strict=True):
        job.add(key, previous)
        job.chunk[key], job.batch[key] = chunk, batch
        if job.use_dp and kind == "forward-compute" and not seen.get(chunk):
            seen[chunk] = True
            job.add(key, gathers[chunk])
        direction = kind.split("-")[0]
        for way in ("recv", "send"):
            at_start = direction == "forward"
            outer = stage == (0 if (way == "recv") == at_start else job.pp - 1)
            if job.pp == 1 or (job.vpp == 1 and outer):
                continue
            transfer: Key = (f"{direction}-{way}", k, stage)
            before: Key | None = (f"{direction}-{way}", k - 1, stage) if k else None
            if way == "recv":
                job.add(transfer, before, last_of_type.get(kind))
                job.add(key, transfer)
            else:
                job.add(transfer, before, key)
            where[(f"{direction}-{way}", chunk * job.pp + stage, batch)] = transfer
        last_of_type[kind] = key
        previous = key
    first = next(i for i, key in enumerate(keys) if key[0] == "backward-compute")
    if first >= 2:
        for way in ("recv", "send"):
            posted: Key = (f"backward-{way}", 0, stage)
            if posted in job.waits:
                job.add(posted, keys[first - 2])
    _tail(job, stage, keys, gathers)


def _tail(  # noqa: C901  (as above)
    job: SyntheticJob, stage: int, keys: list[Key], gathers: list[Key]
) -> None:
    last_backward: dict[int, Key] = {}
    for key in keys:
        if key[0] == "backward-compute":
            last_backward[job.chunk[key]] = key
    scatters: list[Key] = []
    if job.use_dp:
        for k, chunk in enumerate(reversed(range(job.vpp))):
            scatter = job.add(("grads-reduce-scatter", k, stage), (scatters or gathers)[-1])
            job.chunk[scatter] = chunk
            if job.overlap:
                job.add(scatter, last_backward[chunk])
            scatters.append(scatter)
    pause = job.add(("gc", 0, stage), keys[-1])
    here = job.add(("layernorm-grads-all-reduce", 0, stage), pause)
    if job.overlap and scatters:
        job.add(here, scatters[-1])
    if stage in (0, job.pp - 1):
        here = job.add(("embedding-grads-all-reduce", 0, stage), here)
    if job.use_dp and job.overlap:
        here = job.add(("separate-grads-all-reduce", 0, stage), here)
    elif job.use_dp:
        for scatter in scatters:
            here = job.add(scatter, here)
    here = job.add(("optimizer-clip-main-grad", 0, stage), here)
    job.add(("optimizer", 0, stage), here)


Times = dict[Key, float]
"""Duration (local) or transfer (grouped) of each operation of one data rank."""


def draw(job: SyntheticJob, rng: np.random.Generator, spread: float = 0.2) -> list[Times]:
    """Random times per data rank."""

    def one(key: Key) -> float:
        usual = WORK.get(key[0]) or TRANSFER.get(key[0]) or 0.0015
        return float(usual * (1 + spread * rng.random()))

    return [{key: one(key) for key in job.waits} for _ in range(job.dp)]


def run(
    job: SyntheticJob, times: list[Times], delay: Callable[[Key, int], float] = lambda _key, _d: 0.0
) -> tuple[list[Times], list[Times]]:
    """Starts and ends per data rank, by relaxation until nothing changes."""
    grouped = {key: (members, across) for members, across in job.groups for key in members}
    start = [dict.fromkeys(job.waits, 0.0) for _ in range(job.dp)]
    end = [dict.fromkeys(job.waits, 0.0) for _ in range(job.dp)]
    for _ in range(len(job.waits) + 5):
        moved = 0.0
        for key, waits in job.waits.items():
            members, across = grouped.get(key, ([key], False))
            for d in range(job.dp):
                start[d][key] = max((end[d][before] for before in waits), default=0.0) + delay(key, d)
            for d in range(job.dp):
                ranks = range(job.dp) if across else (d,)
                latest = max(start[rank][member] for rank in ranks for member in members)
                for member in members:
                    at = latest + times[d][member]
                    moved = max(moved, abs(at - end[d][member]))
                    end[d][member] = at
        if moved == 0.0:
            return start, end
    raise AssertionError("the schedule has a cycle")


def step_seconds(job: SyntheticJob, times: list[Times]) -> float:
    _, end = run(job, times)
    return max(end[d][key] for d in range(job.dp) for key in job.waits if key[0] == "optimizer")


def rows_of(
    job: SyntheticJob,
    step: int,
    start: list[Times],
    end: list[Times],
    skew: dict[tuple[int, int], float] | None = None,
) -> list[dict[str, object]]:
    origin = min(min(held.values()) for held in start)
    rows: list[dict[str, object]] = []
    for d in range(job.dp):
        for key in job.waits:
            kind, sequence, stage = key
            compute = kind.endswith("compute")
            rows.append(
                {
                    "dp_rank": d,
                    "stage": stage,
                    "rank": stage * job.dp + d,
                    "step": step,
                    "optype": kind,
                    "start_ts": start[d][key] - origin + (skew or {}).get((d, stage), 0.0),
                    "duration": end[d][key] - start[d][key],
                    "seq_id": sequence,
                    "mc": job.chunk.get(key, -1),
                    "mb_id": job.batch.get(key, -1),
                    "gmc": job.chunk[key] * job.pp + stage if compute else -1,
                }
            )
    return rows


def table_of(rows: list[dict[str, object]], *, single: bool = True) -> pa.Table:
    table = pa.Table.from_pylist(rows)
    for name in ("start_ts", "duration"):
        column = table.column(name).cast(pa.float32() if single else pa.float64())
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


@dataclass
class Execution:
    """A synthetic trace and the times that made it."""

    job: SyntheticJob
    times: list[list[Times]]
    rows: list[dict[str, object]]

    @property
    def table(self) -> pa.Table:
        return table_of(self.rows)


def execute(
    job: SyntheticJob,
    n_steps: int = 3,
    seed: int = 0,
    *,
    delay: float = 0.0005,
    slow: Callable[[Key, int, int], float] = lambda _key, _d, _step: 1.0,
) -> Execution:
    """Run steps with random times; `slow` multiplies the time of an operation (key, data rank, step)."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    held = []
    for step in range(n_steps):
        times = [
            {key: value * slow(key, d, step) for key, value in one.items()}
            for d, one in enumerate(draw(job, rng))
        ]
        delays = {(key, d): delay * float(rng.random()) for d in range(job.dp) for key in job.waits}
        start, end = run(job, times, lambda key, d, held=delays: held[key, d])  # type: ignore[misc]
        rows += rows_of(job, step, start, end)
        held.append(times)
    return Execution(job, held, rows)
