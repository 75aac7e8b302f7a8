"""GPUs that are hot, capped, shared or wear out, and their links to the host."""

from __future__ import annotations

from benchmarks.retold_incidents.expected import Expected, between, exactly, slow, some_of, whole
from benchmarks.retold_incidents.incident import RetoldReport, incident

#: What a slow computation may be called where no exporter shows the reason.
COMPUTE = "unknown gpu_throttling gpu_contention gpu_memory_errors cpu_contention"
THERMAL, POWER_CAP, POWER_BRAKE = float(0x20 | 0x40), float(0x4), float(0x80)
DENSE = {"data_loading": 0.006, "forward": 2.1, "backward": 4.2, "transfer": 0.62, "optimizer": 0.16}


@incident(
    "Machine Learning Engineering Open Book: one overheating GPU of 64",
    "rich poor overlapped", poor="forward backward optimizer, untimed",
)  # fmt: skip
def hot_a100(report: RetoldReport) -> Expected:
    """A GPU at 88 C runs at 1,005 of 1,410 MHz from the first step to the last."""
    job = report.job(64, 130, DENSE, gpu="A100")
    job.slow("compute", 1410 / 1005, [37])
    job.seen.shows([37], SM_CLOCK=(1005, 0.02), GPU_TEMP=(88, 0.004), MEMORY_TEMP=(95, 0.004))
    job.seen.shows([37], CLOCKS_EVENT_REASONS=THERMAL, THERMAL_VIOLATION=(8.2e8, 0.05))
    return slow("gpu_throttling" if report.variant == "rich" else COMPUTE, exactly(37))


@incident(
    "Llama 3 report: power of 16,384 GPUs; power brake of one chassis", "rich poor", poor="forward, untimed"
)
def brake_h100(report: RetoldReport) -> Expected:
    """A failed power supply brakes the eight GPUs of a chassis to 55 % of their clock."""
    seconds = {"data_loading": 0.02, "forward": 3.4, "backward": 7.0, "transfer": 1.3, "optimizer": 0.3}
    parallelism = {"data": 16, "tensor": 8}
    job = report.job(128, 120, seconds, parallelism=parallelism, framework="megatron", every=30)
    ranks = job.of_node(11)
    job.slow("compute", 1 / 0.55, ranks, 48)
    job.seen.shows(ranks, since=48, SM_CLOCK=(0.55 * 1980, 0.02), CLOCKS_EVENT_REASONS=POWER_BRAKE + 8)
    job.seen.shows(ranks, since=48, POWER_USAGE=(390, 0.03), POWER_VIOLATION=(7e8, 0.05))
    return slow("gpu_throttling" if report.variant == "rich" else COMPUTE, exactly(*ranks))


@incident("FALCON: computing fail-slow, some 20 % for ten minutes", "rich poor", poor="few, untimed")
def capped_v100(report: RetoldReport) -> Expected:
    """One of four GPUs is 22 % slower for ten minutes, then sound again."""
    seconds = {"data_loading": 0.004, "host_to_device": 0.01, "forward": 0.24, "backward": 0.5}
    seconds |= {"transfer": 0.06, "optimizer": 0.03}
    job = report.job(4, 2000, seconds, per_node=4, gpu="V100")
    job.slow("compute", 1.22, [2], 500, 1180)
    reasons = {"CLOCKS_EVENT_REASONS": POWER_CAP, "POWER_VIOLATION": (4e8, 0.1)}
    job.seen.shows([2], since=500, until=1180, SM_CLOCK=(1530 / 1.24, 0.02), **reasons)
    return slow("gpu_throttling" if report.variant == "rich" else COMPUTE, exactly(2))


@incident(
    "Imbue 70B: GPUs left at a low clock after a firmware update",
    "rich poor", poor="forward backward optimizer, joint",
)  # fmt: skip
def low_clock_chronic(report: RetoldReport) -> Expected:
    """Three GPUs on two nodes run 18 % slower in every step, with the software power cap as the reason."""
    seconds = {"data_loading": 0.01, "forward": 0.9, "backward": 1.8, "transfer": 0.35, "optimizer": 0.08}
    job = report.job(32, 200, seconds, gpu="H800", every=10)
    ranks = [9, 12, 27]
    job.slow("compute", 1.18, ranks)
    job.seen.shows(ranks, SM_CLOCK=(1755 / 1.19, 0.01), CLOCKS_EVENT_REASONS=POWER_CAP)
    return slow("gpu_throttling" if report.variant == "rich" else COMPUTE, exactly(*ranks))


@incident("Llama 3 report: 72 interruptions by HBM3; Delta study: row remaps")
def hbm_remap(report: RetoldReport) -> Expected:
    """Corrected memory errors by the hundred, rows are remapped, and the rank computes 28 % longer."""
    job = report.job(16, 220, DENSE)
    job.slow("compute", 1.28, [6], 90)
    job.seen.shows([6], since=90, ECC_SBE_VOL_TOTAL=(7.0, 0.4), UNCORRECTABLE_REMAPPED_ROWS=0.004)
    for n in range(4):
        message = "Row Remapper: new row marked for remapping"
        job.event(job.at(90) + 3.0 + 160 * n, 6, "xid", message, code="63")
    return slow("gpu_memory_errors", exactly(6))


@incident("BLOOM chronicles: processes of an earlier job left on a GPU", "rich poor", poor="few, split")
def left_over_process(report: RetoldReport) -> Expected:
    """A second process keeps one GPU busy: computing takes 1.4 to 2 times as long, the clock is normal."""
    seconds = {"data_loading": 0.01, "forward": 0.5, "backward": 1.0, "transfer": 0.12, "optimizer": 0.05}
    job = report.job(8, 300, seconds, gpu="A100", every=5)
    job.slow("compute", report.rng.uniform(1.4, 2.0, 190), [3], 110)
    job.seen.shows([3], since=110, FB_USED=80_800, DCGM_FI_PROF_SM_ACTIVE=(0.97, 0.01), GPU_UTIL=100)
    return slow("gpu_contention unknown" if report.variant == "rich" else COMPUTE, exactly(3))


@incident("Minder: PCIe downgrading of one machine, and pause frames")
def pcie_width(report: RetoldReport) -> Expected:
    """A link falls from 16 lanes to 4: copies and the exchange through it take longer, replays grow."""
    seconds = {"data_loading": 0.01, "host_to_device": 0.09, "forward": 0.7, "backward": 1.4}
    job = report.job(32, 260, seconds | {"transfer": 0.5, "optimizer": 0.06}, gpu="A100", roce=True, every=10)
    job.slow("host_to_device", 4.1, [18], 100)
    job.slow("transfer", 1.7, since=100)
    job.seen.shows([18], since=100, PCIE_LINK_WIDTH=4, PCIE_REPLAY_COUNTER=(3.0, 0.3))
    job.seen.shows([18], since=100, DCGM_FI_PROF_PCIE_RX_BYTES=(7e8, 0.1))
    job.seen.shows([2], since=100, device="mlx5_2/1", tx_prio3_pause=(4200.0, 0.2))
    return slow("pcie_degradation", between([18], job.of_node(2)))


@incident(
    "Meta, reliability of research clusters: links that train down silently",
    "rich poor", poor="host_to_device forward, untimed",
)  # fmt: skip
def pcie_gen_chronic(report: RetoldReport) -> Expected:
    """A link at generation 1 of 4 in every step: copies take eight times as long, 0.2 s of 1.5 s."""
    seconds = {"data_loading": 0.003, "host_to_device": 0.028, "forward": 0.38, "backward": 0.76}
    job = report.job(16, 420, seconds | {"transfer": 0.11, "optimizer": 0.03}, gpu="A100", every=10)
    job.slow("host_to_device", 7.8, [13])
    job.seen.shows([13], PCIE_LINK_GEN=1, DCGM_FI_PROF_PCIE_RX_BYTES=(3e8, 0.1))
    others = "" if report.variant == "rich" else " unknown data_loader_stall cpu_contention"
    return slow("pcie_degradation" + others, exactly(13))


@incident("Alibaba C4: NVLink errors; XID 74 without an end of the job", "rich poor", poor="few, split")
def nvlink_replays(report: RetoldReport) -> Expected:
    """Replays on one GPU's NVLink double the exchange within the node and so in the job."""
    seconds = {"data_loading": 0.004, "forward": 0.62, "backward": 1.25, "transfer": 0.45, "optimizer": 0.05}
    job = report.job(8, 320, seconds, every=10)
    job.slow("transfer", 2.4, since=120)
    if report.variant == "poor":
        causes = "unknown nvlink_degradation nic_degradation network_congestion"
        return slow(causes, whole(8), some_of(range(8))).or_abstains()
    for name in ("CRC_FLIT_ERROR_COUNT_TOTAL", "REPLAY_ERROR_COUNT_TOTAL", "RECOVERY_ERROR_COUNT_TOTAL"):
        job.seen.shows([5], since=120, **{f"NVLINK_{name}": (45.0, 0.3)})
    job.event(job.at(120) + 1, 5, "xid", "NVLink: fatal error detected on link 3", code="74")
    return slow("nvlink_degradation", between([5], range(8)))


@incident("GPT-NeoX on LUMI: one half of an MI250X below its clock", "rich bare")
def amd_hot(report: RetoldReport) -> Expected:
    """The exporter of AMD: a GPU at 1,150 of 1,700 MHz and 104 C at its junction."""
    job = report.job(16, 200, DENSE, gpu="A100")
    job.slow("compute", 1.46, [9], 70)
    job.seen.only("DCGM", others=True)
    for name, usual, hot in (
        ("clock", 1700, 1150), ("junction_temperature", 71, 104), ("package_power", 480, 330),
        ("gfx_activity", 99, 99),
    ):  # fmt: skip
        job.seen.shows(**{f"amd_gpu_{name}": (usual, 0.012)})
        job.seen.shows([9], since=70, **{f"amd_gpu_{name}": (hot, 0.012)})
    return slow("gpu_throttling", exactly(9))
