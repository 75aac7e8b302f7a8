"""Situations that a new user makes to try a diagnosis: a sleep, a clock limit, a killed process."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.accelerators import COMPUTE
from benchmarks.retold_incidents.expected import (
    HEALTHY,
    SOUND,
    Expected,
    exactly,
    slow,
    some_of,
    stop,
    whole,
)
from benchmarks.retold_incidents.incident import RetoldReport, incident

SMALL = {"data_loading": 0.005, "forward": 0.09, "backward": 0.18, "transfer": 0.03, "optimizer": 0.02}


@incident(
    "NVRx discussions: 200 ms injected on one rank", "overlapped joint loading",
    overlapped="data_loading forward backward, backward", joint="all, joint", loading="data_loading, untimed",
)  # fmt: skip
def sleep_in_loader(report: RetoldReport) -> Expected:
    """Rank 2 of 4 sleeps 0.2 s before each batch from step 100 on; backward contains the waiting."""
    report.job(4, 300, SMALL, per_node=4).delay("data_loading", 0.2, 2, slice(100, None))
    return slow("data_loader_stall unknown storage_degradation", exactly(2))


@incident("NVRx discussions: a sleep beside the timers", "overlapped")
def sleep_untimed(report: RetoldReport) -> Expected:
    """Rank 1 of 4 sleeps 0.15 s within its step, where no timer is: only its shorter waiting tells."""
    report.job(4, 300, SMALL, per_node=4).delay("untimed", 0.15, 1, slice(120, None))
    return slow("unknown", exactly(1)).or_abstains()


@incident("nvidia-smi -lgc on one GPU of a machine", "rich chronic bare")
def locked_clock(report: RetoldReport) -> Expected:
    """GPU 5 of 8 is locked at 900 MHz, which sets the reason for application clocks and no heat."""
    job = report.job(8, 300, SMALL | {"forward": 0.2, "backward": 0.4}, every=5)
    since = 0 if report.variant == "chronic" else 130
    job.slow("compute", 1.9, [5], since)
    job.seen.shows([5], since=since, SM_CLOCK=900, CLOCKS_EVENT_REASONS=2.0, POWER_USAGE=(280, 0.02))
    if report.variant == "bare":
        job.seen.only("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE")
    return slow("gpu_throttling", exactly(5))


@incident("stress-ng on one of two machines of a small job", "rich bare")
def stress(report: RetoldReport) -> Expected:
    """64 busy processes on the machine of ranks 2 and 3 make its launches late."""
    job = report.job(4, 400, SMALL, per_node=2, gpu="L4", ports=0, every=5, processes=True)
    for phase in ("data_loading", "forward", "optimizer"):
        job.slow(phase, report.rng.uniform(1.5, 2.4, (2, 220)), [2, 3], 180)
    job.seen.shows([1], since=180, node_load1=(66, 0.1))
    job.seen.shows([1], since=180, device="user", node_cpu_seconds_total=(95.5, 0.002))
    job.seen.shows([1], since=180, device="idle", node_cpu_seconds_total=(0.1, 0.3))
    job.seen.shows([1], since=180, node_pressure_cpu_waiting_seconds_total=(0.7, 0.05))
    waiting = (0.31, 0.1)
    job.seen.shows([2, 3], since=180, device="host", process_schedstat_waiting_seconds_total=waiting)
    if report.variant == "bare":
        job.seen.only("node_")
    return slow("cpu_contention", exactly(2, 3))


@incident("tc qdisc with a delay of 20 ms on one machine of a TCP job", "rich poor", poor="few, split")
def netem(report: RetoldReport) -> Expected:
    """The round trips of one machine are 20 ms longer; every exchange takes six times as long."""
    job = report.job(8, 300, SMALL | {"transfer": 0.08}, per_node=2, gpu="V100", ports=0, every=5)
    job.slow("transfer", 6.0 * report.rng.lognormal(0, 0.1, 180), since=120)
    if report.variant == "poor":
        causes = "unknown network_congestion nic_degradation communication_misconfiguration"
        return slow(causes, whole(8), some_of(range(8))).or_abstains()
    job.seen.shows(node_tcp_rtt_seconds=(0.0004, 0.2))
    job.seen.shows([2], since=120, node_tcp_rtt_seconds=(0.0204, 0.03))
    return slow("nic_degradation network_congestion", some_of(job.of_node(2)))


@incident("kill -STOP on one rank")
def stopped_process(report: RetoldReport) -> Expected:
    """Rank 3 is stopped and stays so; its peers wait, and the kernel shows its state."""
    job = report.job(8, 260, SMALL, stop_at=210, tail=90, gpu="A100", every=5, processes=True)
    job.unfinished = [rank for rank in range(8) if rank != 3]
    span = slice(job.seen.after(job.stopped), None)
    job.seen.shows([3], device="host", span=span, process_state_stopped=1.0)
    job.seen.shows([3], device="host/user", span=span, process_cpu_seconds_total=0.0)
    return stop("hang process_crash", exactly(3))


@incident("kill -9 on one rank, the launcher reports it", "events", events="few, joint")
def killed(report: RetoldReport) -> Expected:
    """Rank 1 of 4 is killed; torchrun ends the others with SIGTERM after 1 to 3 s."""
    job = report.job(4, 200, SMALL, per_node=4, stop_at=160, tail=15)
    at = job.stopped + 0.1
    job.event(at, 1, "process_exit", code="-9")
    for rank in (0, 2, 3):
        job.event(at + 1 + 0.7 * rank, rank, "process_exit", code="-15")
    return stop("process_crash", exactly(1))


@incident(
    "dcgm-exporter without a pod label: samples have a node and a device only",
    rich="few, joint, exporters",
)
def no_rank_labels(report: RetoldReport) -> Expected:
    """GPU 6 of the second node is throttled; steps are timed, and metrics have no rank."""
    job = report.job(16, 240, SMALL, gpu="A100", every=5)
    job.slow("compute", 1.5, [14], 90)
    job.seen.shows([14], since=90, SM_CLOCK=(930, 0.02), CLOCKS_EVENT_REASONS=0x40)
    job.seen.ranked = False
    return slow("gpu_throttling", exactly(14))


@incident("A user has the log of rank 0 of eight, with a slow second half", "poor", poor="none, untimed")
def one_log(report: RetoldReport) -> Expected:
    """The job takes twice as long from step 150 on; only rank 0 reports, so no rank can be named."""
    job = report.job(8, 300, SMALL, kept=np.arange(8)[:, None] + np.zeros(300) == 0)
    job.slow("compute", 2.0, [5], 150)
    return slow(COMPUTE, whole(8)).or_abstains()


@incident(
    "A user without any peers: world size 1", "poor rich", poor="data_loading forward backward, untimed"
)
def one_rank(report: RetoldReport) -> Expected:
    """The only GPU is throttled in the second half: there is no peer, but its own past."""
    job = report.job(1, 400, SMALL | {"transfer": 0.0}, per_node=1, gpu="L4", every=5)
    job.slow("compute", 1.7, [0], 200)
    job.seen.shows([0], since=200, SM_CLOCK=(1150, 0.02), CLOCKS_EVENT_REASONS=0x20, GPU_TEMP=(91, 0.01))
    poor = report.variant == "poor"
    return slow(COMPUTE if poor else "gpu_throttling", exactly(0)).or_abstains(poor)


@incident("The smallest data-parallel job: two GPUs, one of them slow", "poor", poor="few, split")
def two_ranks(report: RetoldReport) -> Expected:
    """Rank 1 computes 1.6 times as long in every step: of two, the one that never waits."""
    report.job(2, 300, SMALL, per_node=2).slow("compute", 1.6, [1])
    return slow(COMPUTE, exactly(1)).or_abstains()


@incident("A user doubles the batch in the middle and counts nothing", "poor")
def larger_batch(report: RetoldReport) -> Expected:
    """All ranks compute 1.9 times as long from step 130 on; without counts it may be anything."""
    report.job(8, 260, SMALL).slow("compute", 1.9, since=130)
    verdicts = frozenset({"fail_slow", HEALTHY})
    return Expected(verdicts, (whole(8),), frozenset(COMPUTE.split()), may_abstain=True)


@incident("A log in milliseconds, sent as seconds", "poor", refused=True)
def milliseconds(report: RetoldReport) -> Expected:
    """Steps of 325 "seconds" begin every 0.325 s: a rank cannot be in two steps at once."""
    job = report.job(4, 200, SMALL, per_node=4)
    job.play()
    job.phase = {name: 1000 * held for name, held in job.phase.items()}
    job.wait, job.transfer, job.whole = 1000 * job.wait, 1000 * job.transfer, 1000 * job.whole
    job.end += 90_000
    return SOUND


@incident("A collector runs on one of two machines", "poor")
def half_the_ranks(report: RetoldReport) -> Expected:
    """Ranks 8 to 15 never report anything, and nothing is wrong with the others."""
    report.job(16, 250, SMALL, kept=np.arange(16)[:, None] + np.zeros(250) < 8)
    return SOUND.or_abstains()


@incident("A collector of one node is killed, training goes on", "poor")
def collector_dies(report: RetoldReport) -> Expected:
    """The rows of ranks 8 to 15 end in the middle; their peers go on, which no stop allows."""
    report.job(16, 300, SMALL, kept=(np.arange(16) < 8)[:, None] | (np.arange(300) < 150))
    return SOUND.or_abstains()


@incident("A user writes events by hand: exit codes as text, no other word", "events", events="none, untimed")
def exit_words(report: RetoldReport) -> Expected:
    """Rank 0 exits with 1, the node of the others is not named, and nothing follows for a minute."""
    job = report.job(4, 120, SMALL, per_node=4, stop_at=100, tail=60)
    job.event(job.stopped + 0.4, 0, "process_exit", code="1")
    job.events[0]["node"] = None
    return stop("process_crash", exactly(0))
