"""Jobs that stand still: a collective that some ranks never join."""

from __future__ import annotations

from benchmarks.retold_incidents.crashes import ENDED, STEP
from benchmarks.retold_incidents.expected import Expected, exactly, stop
from benchmarks.retold_incidents.incident import RetoldReport, incident


@incident("torchtune issue 2093: rank 0 saves, the others time out in the next collective", "events")
def saver_hangs(report: RetoldReport) -> Expected:
    """Rank 0 never comes back from a save; seven watchdogs fire after 600 s, its own does not."""
    job = report.job(8, 220, STEP, stop_at=200, tail=640, unfinished=range(1, 8))
    job.held("checkpoint")
    others = dict.fromkeys(range(1, 8), 28956)
    job.watchdogs(job.stopped + 601, 3, others, 600_000, text="[Rank {}] ")
    return stop(f"{ENDED} checkpoint_stall", exactly(0))


@incident("PyTorch issue 118369: watchdogs give other sequence numbers for one rank", "events")
def behind_in_sequence(report: RetoldReport) -> Expected:
    """All eight ranks time out, seven at collective 96,120 and rank 6 at 64,088: it is in another place."""
    seconds = {"data_loading": 0.01, "forward": 0.21, "backward": 0.43, "transfer": 0.05, "optimizer": 0.03}
    job = report.job(8, 420, seconds, stop_at=400, tail=1850, unfinished=slice(None))
    numbers = dict.fromkeys(range(8), 96120) | {6: 64088}
    job.watchdogs(job.stopped + 1801, 5, numbers, 1_800_000, text="[Rank {}] ")
    return stop("hang process_crash", exactly(6))


@incident("BLOOM chronicles: hangs without a message on two ranks", "events poor", poor="none, untimed")
def silent_ranks(report: RetoldReport) -> Expected:
    """After 40 steps of 52 s every rank stops; all but ranks 19 and 44 have begun the next step."""
    seconds = {"data_loading": 0.05, "forward": 16.0, "backward": 32.0, "transfer": 3.2, "optimizer": 0.9}
    parallelism = {"data": 6, "tensor": 8}
    job = report.job(48, 44, seconds, framework="megatron", parallelism=parallelism, stop_at=40, tail=1860)
    job.unfinished = [rank for rank in range(48) if rank not in (19, 44)]
    if report.variant == "events":
        job.watchdogs(job.stopped + 1802, 9, dict.fromkeys(job.unfinished, 9401), 1_800_000)
    return stop(ENDED, exactly(19, 44)).or_abstains(report.variant == "poor")


@incident("NCCL issues: the first collective of a new job never ends", "events", events="none, untimed")
def first_step_never(report: RetoldReport) -> Expected:
    """No step is finished. 30 of 32 ranks began one and their watchdogs fire; ranks 8 and 25 are silent."""
    job = report.job(32, 3, STEP, stop_at=0, tail=680)
    job.play()
    job.unfinished = [rank for rank in range(32) if rank not in (8, 25)]
    job.watchdogs(job.start + 620, 6, dict.fromkeys(job.unfinished, 1), 600_000, "BROADCAST")
    return stop(ENDED, exactly(8, 25))


@incident(
    "PyTorch issues: ranks disagree on the first collective, all have begun",
    "events", events="none, untimed",
)  # fmt: skip
def first_step_never_all(report: RetoldReport) -> Expected:
    """Every rank began a first step, and its watchdog fired. The job stopped; the first rank is unknown."""
    job = report.job(16, 3, STEP, stop_at=0, tail=1900, unfinished=slice(None))
    job.play()
    job.watchdogs(job.start + 1803, 8, dict.fromkeys(range(16), 3), 1_800_000)
    return stop("")


@incident("RETURNN issues: uneven sequences for hours, then a hang", "events rich")
def uneven_then_silent(report: RetoldReport) -> Expected:
    """Uneven lengths all along; rank 2 of 8 never finishes a step, then 420 s (700 steps) of silence."""
    seconds = {"data_loading": 0.01, "forward": 0.17, "backward": 0.33, "transfer": 0.03, "optimizer": 0.02}
    job = report.job(8, 520, seconds, framework="returnn", stop_at=500, tail=420, gpu="V100", every=10)
    job.unfinished = [rank for rank in range(8) if rank != 2]
    job.slow("compute", report.rng.lognormal(0, 0.16, (8, 520)))
    job.seen.shows([2], since=500, GPU_UTIL=0, POWER_USAGE=(58, 0.02))
    return stop(ENDED, exactly(2))


@incident(
    "ByteRobust: silent hangs, a third of the time lost before they are seen",
    "poor rich", poor="forward, untimed",
)  # fmt: skip
def everybody_silent(report: RetoldReport) -> Expected:
    """All ranks end the same step and nothing follows for 15 minutes; GPUs stay at 100 %."""
    report.job(32, 120, STEP, stop_at=100, tail=900, every=30)
    return stop("hang process_crash unknown").or_abstains(report.variant == "poor")


@incident("Mycroft: a stalled ring; every rank is in the same collective", "poor", poor="few, split")
def somewhere_in_a_ring(report: RetoldReport) -> Expected:
    """All 16 ranks are in an unfinished step with forward and backward done: no rank can be named."""
    report.job(16, 130, STEP, stop_at=110, tail=400, unfinished=slice(None))
    return stop("hang unknown process_crash")
