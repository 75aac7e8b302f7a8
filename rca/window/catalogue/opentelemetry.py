"""GPU signals as OpenTelemetry names them: semantic conventions, and the collector's receiver for DCGM.

Prometheus appends the unit to a name; a file of the collector does not.

References
----------
OpenTelemetry, "Semantic conventions for GPU metrics" (``hw.gpu.*``) and the collector's ``dcgm`` receiver
(``gpu.dcgm.*``).
"""

from __future__ import annotations

from functools import partial

from rca.window.catalogue.signal import Signal, unused

_gpu = partial(Signal, per_gpu=True)
_errors = partial(_gpu, kind="counter", combine="sum", worse="higher")
_MEBIBYTE = 2.0**-20

SIGNALS: tuple[Signal, ...] = (
    _gpu(
        "hw_gpu_utilization",
        "gpu_util",
        "time with any kernel running",
        "%",
        aliases=("hw_gpu_utilization_ratio",),
        modes={"encoder": None, "decoder": None},
        scale=100.0,
    ),
    *(
        _gpu(
            f"hw_gpu_memory_{what}",
            channel,
            meaning,
            "MiB",
            aliases=(f"hw_gpu_memory_{what}_bytes",),
            scale=_MEBIBYTE,
        )
        for what, channel, meaning in (
            ("usage", "gpu_memory_used", "device memory in use"),
            ("limit", "gpu_memory_total", "device memory"),
        )
    ),
    _gpu(
        "hw_gpu_memory_utilization",
        "gpu_memory_share",
        "share of device memory in use",
        "ratio",
        aliases=("hw_gpu_memory_utilization_ratio",),
    ),
    _gpu(
        "gpu_dcgm_clock_frequency",
        "sm_clock_mhz",
        "SM clock",
        "MHz",
        worse="lower",
        aliases=("gpu_dcgm_clock_frequency_hertz",),
        scale=1e-6,
    ),
    _errors(
        "gpu_dcgm_clock_throttle_duration_time",
        None,
        "time throttled by the power cap or by heat",
        "ns",
        aliases=("gpu_dcgm_clock_throttle_duration_time_seconds",),
        modes={"power": "power_violation", "thermal": "thermal_violation"},
        scale=1e9,
    ),
    _errors(
        "gpu_dcgm_ecc_errors",
        None,
        "memory errors since boot",
        modes={"sbe": "ecc_sbe", "single_bit": "ecc_sbe", "dbe": "ecc_dbe", "double_bit": "ecc_dbe"},
    ),
    _gpu(
        "gpu_dcgm_memory_bytes_used",
        None,
        "device memory by its state",
        "MiB",
        aliases=("gpu_dcgm_memory_bytes_used_bytes",),
        modes={"used": "gpu_memory_used", "free": "gpu_memory_free"},
        scale=_MEBIBYTE,
    ),
    _gpu(
        "gpu_dcgm_temperature",
        "gpu_temp",
        "GPU temperature",
        "°C",
        combine="max",
        worse="higher",
        aliases=("gpu_dcgm_temperature_celsius",),
    ),
    _gpu(
        "gpu_dcgm_utilization",
        "gpu_util",
        "time with any kernel running",
        "%",
        aliases=("gpu_dcgm_utilization_ratio",),
        scale=100.0,
    ),
    _gpu(
        "gpu_dcgm_sm_utilization",
        "sm_active",
        "share of SMs with a resident warp",
        "ratio",
        aliases=("gpu_dcgm_sm_utilization_ratio",),
    ),
    *unused(
        "gpu_dcgm_codec_decoder_utilization",
        "gpu_dcgm_codec_encoder_utilization",
        "gpu_dcgm_energy_consumption",
        "gpu_dcgm_memory_bandwidth_utilization",
        "gpu_dcgm_nvlink_io",
        "gpu_dcgm_pcie_io",
        "gpu_dcgm_pipe_utilization",
        "gpu_dcgm_xid_errors",
        "hw_gpu_io",
        meaning="in another form than the channels above",
    ),
    *unused(
        "hw_energy",
        "hw_errors",
        "hw_power",
        "hw_status",
        "hw_temperature",
        meaning="of any kind of hardware, not of GPUs alone",
    ),
)
