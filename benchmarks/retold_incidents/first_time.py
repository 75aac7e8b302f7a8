"""Situations that a new user makes to try a diagnosis: a sleep, a clock limit, a killed process."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.retold_incidents.accelerators import COMPUTE
from benchmarks.retold_incidents.crashes import event
from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import (
    HEALTHY,
    SLOW,
    SOUND,
    STOP,
    Expected,
    Retold,
    between,
    exactly,
    incident,
    slow,
    some_of,
    stop,
    whole,
)
from benchmarks.retold_incidents.jobs import Job
from rca.window import Window

SMALL = {"data_loading": 0.005, "forward": 0.09, "backward": 0.18, "transfer": 0.03, "optimizer": 0.02}


@incident(
    "sleep-in-loader", "NVRx discussions: 200 ms injected on one rank", "overlapped", "joint", "loading"
)
def sleep_in_loader(rng: np.random.Generator, variant: str) -> Retold:
    """Rank 2 of 4 sleeps 0.2 s before each batch from step 100 on; backward contains the waiting."""
    job = Job(rng, 4, 300, SMALL, per_node=4)
    job.phase["data_loading"][2, 100:] += 0.2
    played = job.play()
    causes = "data_loader_stall unknown storage_degradation"
    if variant == "loading":
        window = played.window("sleep-in-loader", ("data_loading",), waiting="untimed")
        return Retold(window, slow(causes, exactly(2)))
    if variant == "joint":
        window = played.window("sleep-in-loader", waiting="joint")
        return Retold(window, slow(causes, exactly(2)))
    window = played.window("sleep-in-loader", ("data_loading", "forward", "backward"), waiting="backward")
    return Retold(window, slow(causes, exactly(2)))


@incident("sleep-untimed", "NVRx discussions: a sleep beside the timers", "overlapped")
def sleep_untimed(rng: np.random.Generator, _: str) -> Retold:
    """Rank 1 of 4 sleeps 0.15 s within its step, where no timer is: only its shorter waiting tells."""
    job = Job(rng, 4, 300, SMALL, per_node=4)
    job.untimed[1, 120:] += 0.15
    played = job.play()
    window = played.window("sleep-untimed", ("forward", "backward"), waiting="backward")
    return Retold(window, slow("unknown", exactly(1)).or_abstains())


@incident("locked-clock", "nvidia-smi -lgc on one GPU of a machine", "rich", "chronic", "bare")
def locked_clock(rng: np.random.Generator, variant: str) -> Retold:
    """GPU 5 of 8 is locked at 900 MHz, which sets the reason for application clocks and no heat."""
    job = Job(rng, 8, 300, SMALL | {"forward": 0.2, "backward": 0.4})
    since = 0 if variant == "chronic" else 130
    job.slow("compute", 1.9, [5], since)
    played = job.play()
    seen = Exporters(played, every=5)
    span = slice(seen.since(since), None)
    seen.set("DCGM_FI_DEV_SM_CLOCK", 900, rank=[5], span=span)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 2.0, rank=[5], span=span)
    seen.set("DCGM_FI_DEV_POWER_USAGE", 280, rank=[5], span=span, noise=0.02)
    expected = slow("gpu_throttling", exactly(5))
    if variant == "bare":
        seen.only("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE")
        window = played.window("locked-clock", (), waiting="untimed", metrics=seen.table())
        return Retold(window, expected)
    return Retold(played.window("locked-clock", metrics=seen.table()), expected)


@incident("stress", "stress-ng on one of two machines of a small job", "rich", "bare")
def stress(rng: np.random.Generator, variant: str) -> Retold:
    """64 busy processes on the machine of ranks 2 and 3 make its launches late."""
    job = Job(rng, 4, 400, SMALL, per_node=2)
    since = 180
    for phase in ("data_loading", "forward", "optimizer"):
        job.slow(phase, rng.uniform(1.5, 2.4, (2, 220)), [2, 3], since)
    played = job.play()
    seen = Exporters(played, gpu="L4", ports=0, every=5, processes=True)
    span = slice(seen.since(since), None)
    seen.set("node_load1", 66, node=[1], span=span, noise=0.1)
    seen.set("node_cpu_seconds_total", 95.5, node=[1], device="user", span=span, noise=0.002)
    seen.set("node_cpu_seconds_total", 0.1, node=[1], device="idle", span=span, noise=0.3)
    seen.set("node_pressure_cpu_waiting_seconds_total", 0.7, node=[1], span=span, noise=0.05)
    seen.set(
        "process_schedstat_waiting_seconds_total", 0.31, rank=[2, 3], device="host", span=span, noise=0.1
    )
    expected = slow("cpu_contention", exactly(2, 3))
    if variant == "bare":
        seen.only("node_")
        window = played.window("stress", (), waiting="untimed", metrics=seen.table())
        return Retold(window, expected)
    return Retold(played.window("stress", metrics=seen.table()), expected)


@incident("netem", "tc qdisc with a delay of 20 ms on one machine of a TCP job", "rich", "poor")
def netem(rng: np.random.Generator, variant: str) -> Retold:
    """The round trips of one machine are 20 ms longer; every exchange takes six times as long."""
    job = Job(rng, 8, 300, SMALL | {"transfer": 0.08}, per_node=2)
    since = 120
    job.slow("transfer", 6.0 * rng.lognormal(0, 0.1, 180), since=since)
    played = job.play()
    if variant == "poor":
        window = played.window("netem", ("forward", "backward"))
        causes = "unknown network_congestion nic_degradation communication_misconfiguration"
        return Retold(window, slow(causes, whole(8), some_of(range(8))).or_abstains())
    seen = Exporters(played, gpu="V100", ports=0, every=5)
    seen.set("node_tcp_rtt_seconds", 0.0004, node=slice(None), noise=0.2)
    seen.set("node_tcp_rtt_seconds", 0.0204, node=[2], span=slice(seen.since(since), None), noise=0.03)
    window = played.window("netem", metrics=seen.table())
    return Retold(window, slow("nic_degradation network_congestion", some_of(job.of_node(2))))


@incident("stopped-process", "kill -STOP on one rank", "rich")
def stopped_process(rng: np.random.Generator, _: str) -> Retold:
    """Rank 3 is stopped and stays so; its peers wait, and the kernel shows its state."""
    job = Job(rng, 8, 260, SMALL)
    played = job.play(stop_at=210, tail=90)
    seen = Exporters(played, gpu="A100", every=5, processes=True)
    seen.set("process_state_stopped", 0.0, rank=slice(None), device="host")
    span = slice(int(np.searchsorted(seen.times, played.stopped)), None)
    seen.set("process_state_stopped", 1.0, rank=[3], device="host", span=span)
    seen.set("process_cpu_seconds_total", 0.0, rank=[3], device="host/user", span=span)
    others = [rank for rank in range(8) if rank != 3]
    window = played.window("stopped-process", metrics=seen.table(), unfinished=others)
    return Retold(window, stop("hang process_crash", exactly(3)))


@incident("killed", "kill -9 on one rank, the launcher reports it", "events")
def killed(rng: np.random.Generator, _: str) -> Retold:
    """Rank 1 of 4 is killed; torchrun ends the others with SIGTERM after 1 to 3 s."""
    job = Job(rng, 4, 200, SMALL, per_node=4)
    played = job.play(stop_at=160, tail=15)
    at = played.stopped + 0.1
    events = [event(played, at, 1, "process_exit", code="-9")]
    events += [event(played, at + 1 + 0.7 * rank, rank, "process_exit", code="-15") for rank in (0, 2, 3)]
    window = played.window("killed", ("forward", "backward"), waiting="joint", events=events)
    return Retold(window, stop("process_crash", exactly(1)))


@incident(
    "no-rank-labels", "dcgm-exporter without a pod label: samples have a node and a device only", "rich"
)
def no_rank_labels(rng: np.random.Generator, _: str) -> Retold:
    """GPU 6 of the second node is throttled; steps are timed, and metrics have no rank."""
    job = Job(rng, 16, 240, SMALL)
    job.slow("compute", 1.5, [14], 90)
    played = job.play()
    seen = Exporters(played, gpu="A100", every=5)
    span = slice(seen.since(90), None)
    seen.set("DCGM_FI_DEV_SM_CLOCK", 930, rank=[14], span=span, noise=0.02)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x40, rank=[14], span=span)
    metrics = seen.table()
    unnamed = pa.nulls(metrics.num_rows, pa.int32())
    metrics = metrics.set_column(metrics.schema.get_field_index("rank"), "rank", unnamed)
    window = played.window("no-rank-labels", ("forward", "backward"), waiting="joint", metrics=metrics)
    return Retold(window, slow("gpu_throttling", between([14], [])))


@incident("one-log", "A user has the log of rank 0 of eight, with a slow second half", "poor")
def one_log(rng: np.random.Generator, _: str) -> Retold:
    """The job takes twice as long from step 150 on; only rank 0 reports, so no rank can be named."""
    job = Job(rng, 8, 300, SMALL)
    job.slow("compute", 2.0, [5], 150)
    played = job.play()
    kept = np.zeros((8, 300), dtype=bool)
    kept[0] = True
    window = played.window("one-log", (), waiting="untimed", kept=kept)
    causes = frozenset({"unknown", *COMPUTE.split()})
    return Retold(window, Expected(frozenset({SLOW}), (whole(8),), causes, may_abstain=True))


@incident("one-rank", "A user without any peers: world size 1", "poor", "rich")
def one_rank(rng: np.random.Generator, variant: str) -> Retold:
    """The only GPU is throttled in the second half: there is no peer, but its own past."""
    job = Job(rng, 1, 400, SMALL | {"transfer": 0.0}, per_node=1)
    job.slow("compute", 1.7, [0], 200)
    played = job.play()
    if variant == "poor":
        window = played.window("one-rank", ("data_loading", "forward", "backward"), waiting="untimed")
        return Retold(window, slow(COMPUTE, exactly(0)).or_abstains())
    seen = Exporters(played, gpu="L4", every=5)
    span = slice(seen.since(200), None)
    seen.set("DCGM_FI_DEV_SM_CLOCK", 1150, rank=[0], span=span, noise=0.02)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x20, rank=[0], span=span)
    seen.set("DCGM_FI_DEV_GPU_TEMP", 91, rank=[0], span=span, noise=0.01)
    return Retold(played.window("one-rank", metrics=seen.table()), slow("gpu_throttling", exactly(0)))


@incident("two-ranks", "The smallest data-parallel job: two GPUs, one of them slow", "poor")
def two_ranks(rng: np.random.Generator, _: str) -> Retold:
    """Rank 1 computes 1.6 times as long in every step: of two, the one that never waits."""
    job = Job(rng, 2, 300, SMALL, per_node=2)
    job.slow("compute", 1.6, [1])
    window = job.play().window("two-ranks", ("forward", "backward"), waiting="split")
    return Retold(window, slow(COMPUTE, exactly(1)).or_abstains())


@incident("larger-batch", "A user doubles the batch in the middle and counts nothing", "poor")
def larger_batch(rng: np.random.Generator, _: str) -> Retold:
    """All ranks compute 1.9 times as long from step 130 on; without counts it may be anything."""
    job = Job(rng, 8, 260, SMALL)
    job.slow("compute", 1.9, since=130)
    window = job.play().window("larger-batch", ("forward", "backward"), waiting="joint")
    causes = frozenset({"unknown", *COMPUTE.split()})
    return Retold(window, Expected(frozenset({SLOW, HEALTHY}), (whole(8),), causes, may_abstain=True))


@incident("milliseconds", "A log in milliseconds, sent as seconds", "poor", refused=True)
def milliseconds(rng: np.random.Generator, _: str) -> Retold:
    """Steps of 325 "seconds" begin every 0.325 s: a rank cannot be in two steps at once."""
    played = Job(rng, 4, 200, SMALL, per_node=4).play()
    table = played.steps(("forward", "backward"), waiting="joint")
    assert table is not None
    for name in table.column_names:
        if name.endswith("_seconds"):
            held = pc.multiply(table[name], 1000.0)
            table = table.set_column(table.schema.get_field_index(name), name, held)
    document = played.document("milliseconds") | {"end": played.end + 90_000}
    return Retold(Window.from_tables(document, table), SOUND)


@incident("half-the-ranks", "A collector runs on one of two machines", "poor")
def half_the_ranks(rng: np.random.Generator, _: str) -> Retold:
    """Ranks 8 to 15 never report anything, and nothing is wrong with the others."""
    played = Job(rng, 16, 250, SMALL).play()
    kept = np.zeros((16, 250), dtype=bool)
    kept[:8] = True
    window = played.window("half-the-ranks", ("forward", "backward"), waiting="joint", kept=kept)
    return Retold(window, Expected(frozenset({HEALTHY}), may_abstain=True))


@incident("collector-dies", "A collector of one node is killed, training goes on", "poor")
def collector_dies(rng: np.random.Generator, _: str) -> Retold:
    """The rows of ranks 8 to 15 end in the middle; their peers go on, which no stop allows."""
    played = Job(rng, 16, 300, SMALL).play()
    kept = np.ones((16, 300), dtype=bool)
    kept[8:, 150:] = False
    window = played.window("collector-dies", ("forward", "backward"), waiting="joint", kept=kept)
    return Retold(window, Expected(frozenset({HEALTHY}), may_abstain=True))


@incident("exit-words", "A user writes events by hand: exit codes as text, no other word", "events")
def exit_words(rng: np.random.Generator, _: str) -> Retold:
    """Rank 0 exits with 1, the node of the others is not named, and nothing follows for a minute."""
    job = Job(rng, 4, 120, SMALL, per_node=4)
    played = job.play(stop_at=100, tail=60)
    events = [event(played, played.stopped + 0.4, 0, "process_exit", code="1") | {"node": None}]
    window = played.window("exit-words", (), waiting="untimed", events=events)
    return Retold(window, Expected(frozenset({STOP}), (exactly(0),), frozenset({"process_crash"})))
