"""GPU signals as exporters of NVIDIA and AMD devices name them."""

from __future__ import annotations

from functools import partial

from rca.window.catalogue.signal import Signal, unused

_gpu = partial(Signal, per_gpu=True)
_errors = partial(_gpu, kind="counter", combine="sum", worse="higher")

SIGNALS: tuple[Signal, ...] = (
    _gpu(
        "DCGM_FI_DEV_SM_CLOCK",
        "sm_clock_mhz",
        "SM clock",
        "MHz",
        worse="lower",
        aliases=("nvidia_smi_clocks_current_sm_mhz", "dcgm_sm_clock"),
    ),
    _gpu(
        "nvidia_smi_clocks_current_sm_clock_hz",
        "sm_clock_mhz",
        "SM clock",
        "MHz",
        worse="lower",
        scale=1e-6,
    ),
    _gpu(
        "DCGM_FI_DEV_MEM_CLOCK",
        "mem_clock_mhz",
        "memory clock",
        "MHz",
        worse="lower",
        aliases=("dcgm_memory_clock",),
    ),
    _gpu(
        "DCGM_FI_DEV_GPU_UTIL",
        "gpu_util",
        "time with any kernel running",
        "%",
        aliases=("dcgm_gpu_utilization", "DCGM_FI_DEV_GPU_UTIL_SAMPLES"),
    ),
    _gpu("nvidia_smi_utilization_gpu_ratio", "gpu_util", "time with any kernel running", "%", scale=100.0),
    _gpu("DCGM_FI_PROF_SM_ACTIVE", "sm_active", "share of SMs with a resident warp", "ratio"),
    _gpu(
        "DCGM_FI_DEV_GPU_TEMP",
        "gpu_temp",
        "GPU temperature",
        "°C",
        combine="max",
        worse="higher",
        aliases=("nvidia_smi_temperature_gpu", "dcgm_gpu_temp"),
    ),
    _gpu(
        "DCGM_FI_DEV_MEMORY_TEMP",
        "gpu_mem_temp",
        "memory temperature",
        "°C",
        combine="max",
        worse="higher",
        aliases=("DCGM_FI_DEV_MEM_TEMP", "dcgm_memory_temp", "nvidia_smi_temperature_memory"),
    ),
    _gpu(
        "DCGM_FI_DEV_POWER_USAGE",
        "gpu_power",
        "power draw",
        "W",
        aliases=("nvidia_smi_power_draw_watts", "dcgm_power_usage"),
    ),
    _gpu(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "throttled",
        "time with a reason for a low clock: power cap (0x4), hardware slowdown (0x8), heat (0x20, 0x40), "
        "power brake (0x80)",
        "s/s",
        combine="max",
        worse="higher",
        bits=0x4 | 0x8 | 0x20 | 0x40 | 0x80,
        aliases=("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_THROTTLE_REASONS"),
    ),
    _errors(
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "thermal_violation",
        "time throttled by heat",
        "ns",
        aliases=("dcgm_thermal_violation",),
    ),
    _errors(
        "DCGM_FI_DEV_POWER_VIOLATION",
        "power_violation",
        "time throttled by the power cap",
        "ns",
        aliases=("dcgm_power_violation",),
    ),
    _errors(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "ecc_sbe",
        "corrected memory errors since boot",
        aliases=(
            "DCGM_FI_DEV_ECC_SBE_VOL",
            "dcgm_ecc_sbe_volatile_total",
            "nvidia_smi_ecc_errors_corrected_volatile_total",
        ),
    ),
    _errors(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "ecc_dbe",
        "uncorrected memory errors since boot",
        aliases=(
            "DCGM_FI_DEV_ECC_DBE_VOL",
            "dcgm_ecc_dbe_volatile_total",
            "nvidia_smi_ecc_errors_uncorrected_volatile_total",
        ),
    ),
    _errors("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "row_remap", "rows remapped after uncorrected errors"),
    _errors("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "row_remap", "rows remapped after corrected errors"),
    _errors("DCGM_FI_DEV_RETIRED_DBE", "row_remap", "pages retired after uncorrected errors"),
    _errors("DCGM_FI_DEV_RETIRED_SBE", "row_remap", "pages retired after corrected errors"),
    _gpu(
        "DCGM_FI_DEV_XID_ERRORS",
        "xid",
        "code of the last XID error, 0 = none",
        "code",
        kind="state",
        combine="max",
        worse="higher",
        aliases=("dcgm_xid_errors", "DCGM_FI_DEV_XID_ERROR"),
    ),
    _gpu(
        "DCGM_FI_DEV_PCIE_LINK_GEN",
        "pcie_gen",
        "current PCIe generation",
        "generation",
        worse="lower",
        aliases=("nvidia_smi_pcie_link_gen_current", "nvidia_smi_pcie_link_gen_gpucurrent"),
    ),
    _gpu(
        "DCGM_FI_DEV_PCIE_MAX_LINK_GEN",
        "pcie_gen_max",
        "highest PCIe generation",
        "generation",
        aliases=("DCGM_FI_DEV_PCIE_LINK_GEN_MAX", "nvidia_smi_pcie_link_gen_max"),
    ),
    _gpu(
        "DCGM_FI_DEV_PCIE_LINK_WIDTH",
        "pcie_width",
        "current PCIe lanes",
        "lanes",
        worse="lower",
        aliases=("nvidia_smi_pcie_link_width_current",),
    ),
    _gpu(
        "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH",
        "pcie_width_max",
        "most PCIe lanes",
        "lanes",
        aliases=("DCGM_FI_DEV_PCIE_LINK_WIDTH_MAX", "nvidia_smi_pcie_link_width_max"),
    ),
    _errors(
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "pcie_replay",
        "PCIe retransmissions",
        aliases=("dcgm_pcie_replay_counter",),
    ),
    _gpu("DCGM_FI_PROF_PCIE_TX_BYTES", "pcie_tx", "PCIe bytes sent by the GPU", "B/s", combine="sum"),
    _gpu("DCGM_FI_PROF_PCIE_RX_BYTES", "pcie_rx", "PCIe bytes received by the GPU", "B/s", combine="sum"),
    _gpu("DCGM_FI_DEV_FB_USED", "gpu_memory_used", "device memory in use", "MiB"),
    _gpu("DCGM_FI_DEV_FB_FREE", "gpu_memory_free", "device memory that is free", "MiB"),
    _gpu("DCGM_FI_DEV_FB_TOTAL", "gpu_memory_total", "device memory", "MiB"),
    _gpu("DCGM_FI_DEV_FB_USED_PERCENT", "gpu_memory_share", "share of device memory in use", "ratio"),
    # nvidia_gpu_exporter: one gauge for each reason, and bytes.
    *(
        _gpu(
            f"nvidia_smi_clocks_event_reasons_{reason}",
            "throttled",
            f"whether the clock is low by {meaning}",
            "s/s",
            combine="max",
            worse="higher",
            bits=1,
            aliases=(f"nvidia_smi_clocks_throttle_reasons_{reason}",),
        )
        for reason, meaning in (
            ("sw_power_cap", "the power cap"),
            ("hw_slowdown", "a hardware slowdown"),
            ("hw_thermal_slowdown", "heat"),
            ("sw_thermal_slowdown", "heat"),
            ("hw_power_brake_slowdown", "the power brake"),
        )
    ),
    *(
        _gpu(f"nvidia_smi_memory_{what}_bytes", f"gpu_memory_{what}", meaning, "MiB", scale=2.0**-20)
        for what, meaning in (("used", "device memory in use"), ("total", "device memory"))
    ),
    # AMD's device metrics exporter. One clock for each engine, with its kind as a part of the device.
    _gpu(
        "amd_gpu_clock",
        None,
        "clock of the GPU's engines and memory",
        "MHz",
        worse="lower",
        aliases=("gpu_clock",),
        modes={"gpu_clock_type_system": "sm_clock_mhz", "gpu_clock_type_memory": "mem_clock_mhz"},
    ),
    _gpu(
        "amd_gpu_gfx_activity", "gpu_util", "time with any kernel running", "%", aliases=("gpu_gfx_activity",)
    ),
    *(
        _gpu(
            f"amd_{name}", "gpu_temp", "GPU temperature", "°C", combine="max", worse="higher", aliases=(name,)
        )
        for name in ("gpu_junction_temperature", "gpu_edge_temperature")
    ),
    _gpu(
        "amd_gpu_memory_temperature",
        "gpu_mem_temp",
        "memory temperature",
        "°C",
        combine="max",
        worse="higher",
        aliases=("gpu_memory_temperature",),
    ),
    *(
        _gpu(f"amd_{name}", "gpu_power", "power draw", "W", aliases=(name,))
        for name in ("gpu_package_power", "gpu_average_package_power", "gpu_power_usage")
    ),
    _gpu("amd_gpu_used_vram", "gpu_memory_used", "device memory in use", "MiB", aliases=("gpu_used_vram",)),
    _gpu("amd_gpu_total_vram", "gpu_memory_total", "device memory", "MiB", aliases=("gpu_total_vram",)),
    _errors(
        "amd_gpu_ecc_correct_total",
        "ecc_sbe",
        "corrected memory errors since boot",
        aliases=("gpu_ecc_correct_total",),
    ),
    _errors(
        "amd_gpu_ecc_uncorrect_total",
        "ecc_dbe",
        "uncorrected memory errors since boot",
        aliases=("gpu_ecc_uncorrect_total",),
    ),
    _errors("amd_pcie_replay_count", "pcie_replay", "PCIe retransmissions", aliases=("pcie_replay_count",)),
    *unused(
        "amd_pcie_speed",
        "amd_pcie_max_speed",
        "amd_pcie_bandwidth",
        "amd_gpu_umc_activity",
        "amd_gpu_free_vram",
        "amd_gpu_energy_consumed",
        meaning="in another unit than the channels above, or a part of them",
    ),
    *unused(
        "DCGM_EXP_XID_ERRORS_COUNT",
        "DCGM_EXP_CLOCK_EVENTS_COUNT",
        "DCGM_EXP_CLOCK_EVENTS_TOTAL",
        "DCGM_EXP_GPU_HEALTH_STATUS",
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
        "DCGM_FI_DEV_RELIABILITY_VIOLATION",
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
        "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
        "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
        meaning="a copy or a sum of the codes, reasons and counters above",
    ),
    *unused(
        "nccl_collective_exec_time_microseconds",
        "nccl_bus_bandwidth_gbs",
        "nccl_algorithm_bandwidth_gbs",
        "nccl_p2p_exec_time_microseconds",
        "nccl_p2p_bus_bandwidth_gbs",
        meaning="all members of a collective are as slow as its slowest one",
    ),
    *unused(
        "DCGM_FI_DEV_FB_RESERVED",
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "DCGM_FI_DEV_ENC_UTIL",
        "DCGM_FI_DEV_DEC_UTIL",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_SM_OCCUPANCY",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
        "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
        "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
        "DCGM_FI_PROF_DRAM_ACTIVE",
        meaning="depends on the job's work; the channels above indicate faults better",
    ),
    *unused("DCGM_FI_DEV_ROW_REMAP_FAILURE", meaning="a flag that repeats the remap counters"),
)
