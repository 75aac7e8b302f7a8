"""GPUs that are hot, capped, shared or wear out, and their links to the host."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import (
    Retold,
    between,
    exactly,
    incident,
    slow,
    some_of,
)
from benchmarks.retold_incidents.jobs import Job

#: What a slow computation may be called where no exporter shows the reason.
COMPUTE = "unknown gpu_throttling gpu_contention gpu_memory_errors cpu_contention"
THERMAL, POWER_CAP, POWER_BRAKE = float(0x20 | 0x40), float(0x4), float(0x80)
DENSE = {"data_loading": 0.006, "forward": 2.1, "backward": 4.2, "transfer": 0.62, "optimizer": 0.16}


@incident(
    "hot-a100",
    "Machine Learning Engineering Open Book: one overheating GPU of 64",
    "rich",
    "poor",
    "overlapped",
)
def hot_a100(rng: np.random.Generator, variant: str) -> Retold:
    """A GPU at 88 C runs at 1,005 of 1,410 MHz from the first step to the last."""
    job = Job(rng, 64, 130, DENSE)
    job.slow("compute", 1410 / 1005, [37])
    played = job.play()
    if variant == "overlapped":
        window = played.window("hot-a100", ("forward", "backward"), waiting="backward")
        return Retold(window, slow(COMPUTE, exactly(37)))
    if variant == "poor":
        window = played.window("hot-a100", ("forward", "backward", "optimizer"), waiting="untimed")
        return Retold(window, slow(COMPUTE, exactly(37)))
    seen = Exporters(played, gpu="A100")
    seen.set("DCGM_FI_DEV_SM_CLOCK", 1005, rank=[37], noise=0.02)
    seen.set("DCGM_FI_DEV_GPU_TEMP", 88, rank=[37], noise=0.004)
    seen.set("DCGM_FI_DEV_MEMORY_TEMP", 95, rank=[37], noise=0.004)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", THERMAL, rank=[37])
    seen.set("DCGM_FI_DEV_THERMAL_VIOLATION", 8.2e8, rank=[37], noise=0.05)
    return Retold(played.window("hot-a100", metrics=seen.table()), slow("gpu_throttling", exactly(37)))


@incident("brake-h100", "Llama 3 report: power of 16,384 GPUs; power brake of one chassis", "rich", "poor")
def brake_h100(rng: np.random.Generator, variant: str) -> Retold:
    """A failed power supply brakes the eight GPUs of a chassis to 55 % of their clock."""
    seconds = {"data_loading": 0.02, "forward": 3.4, "backward": 7.0, "transfer": 1.3, "optimizer": 0.3}
    job = Job(rng, 128, 120, seconds, parallelism={"data": 16, "tensor": 8}, framework="megatron")
    ranks, since = job.of_node(11), 48
    job.slow("compute", 1 / 0.55, ranks, since)
    played = job.play()
    if variant == "poor":
        window = played.window("brake-h100", ("forward",), waiting="untimed")
        return Retold(window, slow(COMPUTE, exactly(*ranks)))
    seen = Exporters(played, every=30)
    span = slice(seen.since(since), None)
    seen.set("DCGM_FI_DEV_SM_CLOCK", 0.55 * 1980, rank=ranks, span=span, noise=0.02)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", POWER_BRAKE + 8, rank=ranks, span=span)
    seen.set("DCGM_FI_DEV_POWER_USAGE", 390, rank=ranks, span=span, noise=0.03)
    seen.set("DCGM_FI_DEV_POWER_VIOLATION", 7e8, rank=ranks, span=span, noise=0.05)
    window = played.window("brake-h100", metrics=seen.table())
    return Retold(window, slow("gpu_throttling", exactly(*ranks)))


@incident("capped-v100", "FALCON: computing fail-slow, some 20 % for ten minutes", "rich", "poor")
def capped_v100(rng: np.random.Generator, variant: str) -> Retold:
    """One of four GPUs is 22 % slower for ten minutes, then sound again."""
    seconds = {
        "data_loading": 0.004,
        "host_to_device": 0.01,
        "forward": 0.24,
        "backward": 0.5,
        "transfer": 0.06,
        "optimizer": 0.03,
    }
    job = Job(rng, 4, 2000, seconds, per_node=4)
    first, last = 500, 1180
    factor = np.where((np.arange(2000) >= first) & (np.arange(2000) < last), 1.22, 1.0)
    job.slow("compute", factor, [2])
    played = job.play()
    if variant == "poor":
        window = played.window("capped-v100", ("forward", "backward"), waiting="untimed")
        return Retold(window, slow(COMPUTE, exactly(2)))
    seen = Exporters(played, gpu="V100")
    span = slice(seen.since(first), seen.since(last))
    seen.set("DCGM_FI_DEV_SM_CLOCK", 1530 / 1.24, rank=[2], span=span, noise=0.02)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", POWER_CAP, rank=[2], span=span)
    seen.set("DCGM_FI_DEV_POWER_VIOLATION", 4e8, rank=[2], span=span, noise=0.1)
    return Retold(played.window("capped-v100", metrics=seen.table()), slow("gpu_throttling", exactly(2)))


@incident("low-clock-chronic", "Imbue 70B: GPUs left at a low clock after a firmware update", "rich", "poor")
def low_clock_chronic(rng: np.random.Generator, variant: str) -> Retold:
    """Three GPUs on two nodes run 18 % slower in every step, with the software power cap as the reason."""
    seconds = {"data_loading": 0.01, "forward": 0.9, "backward": 1.8, "transfer": 0.35, "optimizer": 0.08}
    job = Job(rng, 32, 200, seconds)
    ranks = [9, 12, 27]
    job.slow("compute", 1.18, ranks)
    played = job.play()
    if variant == "poor":
        window = played.window("low-clock-chronic", ("forward", "backward", "optimizer"), waiting="joint")
        return Retold(window, slow(COMPUTE, exactly(*ranks)))
    seen = Exporters(played, gpu="H800", every=10)
    seen.set("DCGM_FI_DEV_SM_CLOCK", 1755 / 1.19, rank=ranks, noise=0.01)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", POWER_CAP, rank=ranks)
    window = played.window("low-clock-chronic", metrics=seen.table())
    return Retold(window, slow("gpu_throttling", exactly(*ranks)))


@incident("hbm-remap", "Llama 3 report: 72 interruptions by HBM3; Delta study: row remaps", "rich")
def hbm_remap(rng: np.random.Generator, _: str) -> Retold:
    """Corrected memory errors by the hundred, rows are remapped, and the rank computes 28 % longer."""
    job = Job(rng, 16, 220, DENSE)
    since = 90
    job.slow("compute", 1.28, [6], since)
    played = job.play()
    seen = Exporters(played)
    span = slice(seen.since(since), None)
    seen.set("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 7.0, rank=[6], span=span, noise=0.4)
    seen.set("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 0.004, rank=[6], span=span)
    events = [
        {
            "time": played.at(since) + 3.0 + 160 * n,
            "node": job.node(0),
            "rank": 6,
            "kind": "xid",
            "code": "63",
            "message": "Row Remapper: new row marked for remapping",
        }
        for n in range(4)
    ]
    window = played.window("hbm-remap", metrics=seen.table(), events=events)
    return Retold(window, slow("gpu_memory_errors", exactly(6)))


@incident("left-over-process", "BLOOM chronicles: processes of an earlier job left on a GPU", "rich", "poor")
def left_over_process(rng: np.random.Generator, variant: str) -> Retold:
    """A second process keeps one GPU busy: computing takes 1.4 to 2 times as long, the clock is normal."""
    seconds = {"data_loading": 0.01, "forward": 0.5, "backward": 1.0, "transfer": 0.12, "optimizer": 0.05}
    job = Job(rng, 8, 300, seconds)
    since = 110
    job.slow("compute", rng.uniform(1.4, 2.0, 300 - since), [3], since)
    played = job.play()
    if variant == "poor":
        window = played.window("left-over-process", ("forward", "backward"), waiting="split")
        return Retold(window, slow(COMPUTE, exactly(3)))
    seen = Exporters(played, gpu="A100", every=5)
    span = slice(seen.since(since), None)
    seen.set("DCGM_FI_DEV_FB_USED", 80_800, rank=[3], span=span)
    seen.set("DCGM_FI_PROF_SM_ACTIVE", 0.97, rank=[3], span=span, noise=0.01)
    seen.set("DCGM_FI_DEV_GPU_UTIL", 100, rank=[3], span=span)
    window = played.window("left-over-process", metrics=seen.table())
    return Retold(window, slow("gpu_contention unknown", exactly(3)))


@incident("pcie-width", "Minder: PCIe downgrading of one machine, and pause frames", "rich")
def pcie_width(rng: np.random.Generator, _: str) -> Retold:
    """A link falls from 16 lanes to 4: copies and the exchange through it take longer, replays grow."""
    seconds = {
        "data_loading": 0.01,
        "host_to_device": 0.09,
        "forward": 0.7,
        "backward": 1.4,
        "transfer": 0.5,
        "optimizer": 0.06,
    }
    job = Job(rng, 32, 260, seconds)
    since = 100
    job.slow("host_to_device", 4.1, [18], since)
    job.slow("transfer", 1.7, since=since)
    played = job.play()
    seen = Exporters(played, gpu="A100", roce=True, every=10)
    span = slice(seen.since(since), None)
    seen.set("DCGM_FI_DEV_PCIE_LINK_WIDTH", 4, rank=[18], span=span)
    seen.set("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 3.0, rank=[18], span=span, noise=0.3)
    seen.set("DCGM_FI_PROF_PCIE_RX_BYTES", 7e8, rank=[18], span=span, noise=0.1)
    seen.set("tx_prio3_pause", 0.0, node=slice(None), device="mlx5_2/1")
    seen.set("tx_prio3_pause", 4200.0, node=[2], device="mlx5_2/1", span=span, noise=0.2)
    window = played.window("pcie-width", metrics=seen.table())
    return Retold(window, slow("pcie_degradation", between([18], job.of_node(2))))


@incident(
    "pcie-gen-chronic",
    "Meta, reliability of research clusters: links that train down silently",
    "rich",
    "poor",
)
def pcie_gen_chronic(rng: np.random.Generator, variant: str) -> Retold:
    """A link at generation 1 of 4 in every step: copies take eight times as long, 0.2 s of 1.5 s."""
    seconds = {
        "data_loading": 0.003,
        "host_to_device": 0.028,
        "forward": 0.38,
        "backward": 0.76,
        "transfer": 0.11,
        "optimizer": 0.03,
    }
    job = Job(rng, 16, 420, seconds)
    job.slow("host_to_device", 7.8, [13])
    played = job.play()
    if variant == "poor":
        return Retold(
            played.window("pcie-gen-chronic", ("host_to_device", "forward"), waiting="untimed"),
            slow("pcie_degradation unknown data_loader_stall cpu_contention", exactly(13)),
        )
    seen = Exporters(played, gpu="A100", every=10)
    seen.set("DCGM_FI_DEV_PCIE_LINK_GEN", 1, rank=[13])
    seen.set("DCGM_FI_PROF_PCIE_RX_BYTES", 3e8, rank=[13], noise=0.1)
    window = played.window("pcie-gen-chronic", metrics=seen.table())
    return Retold(window, slow("pcie_degradation", exactly(13)))


@incident("nvlink-replays", "Alibaba C4: NVLink errors; XID 74 without an end of the job", "rich", "poor")
def nvlink_replays(rng: np.random.Generator, variant: str) -> Retold:
    """Replays on one GPU's NVLink double the exchange within the node and so in the job."""
    seconds = {"data_loading": 0.004, "forward": 0.62, "backward": 1.25, "transfer": 0.45, "optimizer": 0.05}
    job = Job(rng, 8, 320, seconds)
    since = 120
    job.slow("transfer", 2.4, since=since)
    played = job.play()
    if variant == "poor":
        expected = slow(
            "unknown nvlink_degradation nic_degradation network_congestion",
            exactly(*range(8)),
            some_of(range(8)),
        )
        window = played.window("nvlink-replays", ("forward", "backward"))
        return Retold(window, expected.or_abstains())
    seen = Exporters(played, every=10)
    span = slice(seen.since(since), None)
    for name in ("CRC_FLIT_ERROR_COUNT_TOTAL", "REPLAY_ERROR_COUNT_TOTAL", "RECOVERY_ERROR_COUNT_TOTAL"):
        seen.set(f"DCGM_FI_DEV_NVLINK_{name}", 0.0, rank=slice(None))
        seen.set(f"DCGM_FI_DEV_NVLINK_{name}", 45.0, rank=[5], span=span, noise=0.3)
    events = [
        {
            "time": played.at(since) + 1,
            "node": job.node(0),
            "rank": 5,
            "kind": "xid",
            "code": "74",
            "message": "NVLink: fatal error detected on link 3",
        }
    ]
    window = played.window("nvlink-replays", metrics=seen.table(), events=events)
    return Retold(window, slow("nvlink_degradation", between([5], range(8))))


@incident("amd-hot", "GPT-NeoX on LUMI: one half of an MI250X below its clock", "rich", "bare")
def amd_hot(rng: np.random.Generator, variant: str) -> Retold:
    """The exporter of AMD: a GPU at 1,150 of 1,700 MHz and 104 C at its junction."""
    job = Job(rng, 16, 200, DENSE)
    since = 70
    job.slow("compute", 1.46, [9], since)
    played = job.play()
    seen = Exporters(played, gpu="A100", every=15)
    seen.drop("DCGM")
    span = slice(seen.since(since), None)
    everyone = slice(None)
    for name, usual, hot in (
        ("amd_gpu_clock", 1700, 1150),
        ("amd_gpu_junction_temperature", 71, 104),
        ("amd_gpu_package_power", 480, 330),
        ("amd_gpu_gfx_activity", 99, 99),
    ):
        seen.set(name, usual, rank=everyone, device="gpu", noise=0.012)
        seen.set(name, hot, rank=[9], device="gpu", span=span, noise=0.012)
    phases = () if variant == "bare" else None
    waiting = "untimed" if variant == "bare" else "split"
    window = played.window("amd-hot", phases, waiting=waiting, metrics=seen.table())
    return Retold(window, slow("gpu_throttling", exactly(9)))
