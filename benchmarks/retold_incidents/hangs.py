"""Jobs that stand still: a collective that some ranks never join."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.crashes import ENDED, STEP, WATCHDOG, watchdogs
from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import STOP, Expected, Retold, exactly, incident, stop
from benchmarks.retold_incidents.jobs import Job


@incident(
    "saver-hangs", "torchtune issue 2093: rank 0 saves, the others time out in the next collective", "events"
)
def saver_hangs(rng: np.random.Generator, _: str) -> Retold:
    """Rank 0 never comes back from a save; seven watchdogs fire after 600 s, its own does not."""
    job = Job(rng, 8, 220, STEP)
    job.phase["checkpoint"] = np.zeros((8, 220))
    played = job.play(stop_at=200, tail=640)
    events = watchdogs(
        played,
        rng,
        played.stopped + 601,
        3,
        {rank: f"[Rank {rank}] " + WATCHDOG.format(28956, "ALLREDUCE", 600000) for rank in range(1, 8)},
    )
    window = played.window("saver-hangs", ("forward", "backward"), events=events, unfinished=range(1, 8))
    return Retold(window, stop(f"{ENDED} checkpoint_stall", exactly(0)))


@incident(
    "behind-in-sequence", "PyTorch issue 118369: watchdogs give other sequence numbers for one rank", "events"
)
def behind_in_sequence(rng: np.random.Generator, _: str) -> Retold:
    """All eight ranks time out, seven at collective 96,120 and rank 6 at 64,088: it is in another place."""
    seconds = {"data_loading": 0.01, "forward": 0.21, "backward": 0.43, "transfer": 0.05, "optimizer": 0.03}
    job = Job(rng, 8, 420, seconds)
    played = job.play(stop_at=400, tail=1850)
    events = watchdogs(
        played,
        rng,
        played.stopped + 1801,
        5,
        {
            rank: f"[Rank {rank}] " + WATCHDOG.format(64088 if rank == 6 else 96120, "ALLREDUCE", 1800000)
            for rank in range(8)
        },
    )
    window = played.window(
        "behind-in-sequence", ("forward", "backward"), events=events, unfinished=slice(None)
    )
    return Retold(window, stop("hang process_crash", exactly(6)))


@incident("silent-ranks", "BLOOM chronicles: hangs without a message on two ranks", "events", "poor")
def silent_ranks(rng: np.random.Generator, variant: str) -> Retold:
    """After 40 steps of 52 s every rank stops; all but ranks 19 and 44 have begun the next step."""
    seconds = {"data_loading": 0.05, "forward": 16.0, "backward": 32.0, "transfer": 3.2, "optimizer": 0.9}
    job = Job(rng, 48, 44, seconds, framework="megatron", parallelism={"data": 6, "tensor": 8})
    played = job.play(stop_at=40, tail=1860)
    began = [rank for rank in range(48) if rank not in (19, 44)]
    events = watchdogs(
        played,
        rng,
        played.stopped + 1802,
        9,
        {rank: WATCHDOG.format(9401, "ALLREDUCE", 1800000) for rank in began},
    )
    expected = stop(ENDED, exactly(19, 44))
    if variant == "poor":
        window = played.window("silent-ranks", (), waiting="untimed", unfinished=began)
        return Retold(window, expected.or_abstains())
    window = played.window("silent-ranks", ("forward", "backward"), events=events, unfinished=began)
    return Retold(window, expected)


@incident("first-step-never", "NCCL issues: the first collective of a new job never ends", "events")
def first_step_never(rng: np.random.Generator, _: str) -> Retold:
    """No step is finished. 30 of 32 ranks began one and their watchdogs fire; ranks 8 and 25 are silent."""
    job = Job(rng, 32, 3, STEP)
    played = job.play(stop_at=0, tail=680)
    began = [rank for rank in range(32) if rank not in (8, 25)]
    events = watchdogs(
        played,
        rng,
        job.start + 620,
        6,
        {rank: WATCHDOG.format(1, "BROADCAST", 600000) for rank in began},
    )
    window = played.window("first-step-never", (), waiting="untimed", events=events, unfinished=began)
    return Retold(window, stop(ENDED, exactly(8, 25)))


@incident(
    "first-step-never-all", "PyTorch issues: ranks disagree on the first collective, all have begun", "events"
)
def first_step_never_all(rng: np.random.Generator, _: str) -> Retold:
    """Every rank began a first step, and its watchdog fired. The job stopped; the first rank is unknown."""
    job = Job(rng, 16, 3, STEP)
    played = job.play(stop_at=0, tail=1900)
    events = watchdogs(
        played,
        rng,
        job.start + 1803,
        8,
        {rank: WATCHDOG.format(3, "ALLREDUCE", 1800000) for rank in range(16)},
    )
    window = played.window(
        "first-step-never-all", (), waiting="untimed", events=events, unfinished=slice(None)
    )
    return Retold(window, Expected(frozenset({STOP})))


@incident("uneven-then-silent", "RETURNN issues: uneven sequences for hours, then a hang", "events", "rich")
def uneven_then_silent(rng: np.random.Generator, variant: str) -> Retold:
    """Uneven lengths all along; rank 2 of 8 never finishes a step, then 420 s (700 steps) of silence."""
    seconds = {"data_loading": 0.01, "forward": 0.17, "backward": 0.33, "transfer": 0.03, "optimizer": 0.02}
    job = Job(rng, 8, 520, seconds, framework="returnn")
    job.slow("compute", rng.lognormal(0, 0.16, (8, 520)))
    played = job.play(stop_at=500, tail=420)
    seven = [rank for rank in range(8) if rank != 2]
    expected = stop(ENDED, exactly(2))
    if variant == "events":
        window = played.window("uneven-then-silent", ("forward", "backward"), unfinished=seven)
        return Retold(window, expected)
    seen = Exporters(played, gpu="V100", every=10)
    seen.set("DCGM_FI_DEV_GPU_UTIL", 0, rank=[2], span=slice(seen.since(500), None))
    seen.set("DCGM_FI_DEV_POWER_USAGE", 58, rank=[2], span=slice(seen.since(500), None), noise=0.02)
    window = played.window("uneven-then-silent", metrics=seen.table(), unfinished=seven)
    return Retold(window, expected)


@incident(
    "everybody-silent",
    "ByteRobust: silent hangs, a third of the time lost before they are seen",
    "poor",
    "rich",
)
def everybody_silent(rng: np.random.Generator, variant: str) -> Retold:
    """All ranks end the same step and nothing follows for 15 minutes; GPUs stay at 100 %."""
    job = Job(rng, 32, 120, STEP)
    played = job.play(stop_at=100, tail=900)
    expected = Expected(frozenset({STOP}), (), frozenset({"hang", "process_crash", "unknown"}))
    if variant == "poor":
        return Retold(
            played.window("everybody-silent", ("forward",), waiting="untimed"), expected.or_abstains()
        )
    seen = Exporters(played, every=30)
    return Retold(played.window("everybody-silent", metrics=seen.table()), expected)


@incident("somewhere-in-a-ring", "Mycroft: a stalled ring; every rank is in the same collective", "poor")
def somewhere_in_a_ring(rng: np.random.Generator, _: str) -> Retold:
    """All 16 ranks are in an unfinished step with forward and backward done: no rank can be named."""
    job = Job(rng, 16, 130, STEP)
    played = job.play(stop_at=110, tail=400)
    window = played.window(
        "somewhere-in-a-ring", ("forward", "backward"), waiting="split", unfinished=slice(None)
    )
    return Retold(window, Expected(frozenset({STOP}), (), frozenset({"hang", "unknown", "process_crash"})))
