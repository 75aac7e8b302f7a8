"""NVLink signals as NVIDIA's DCGM exporter names them, for links of a GPU together and each.

DCGM 4.5 renamed most fields. NVLink 5 (GB200) has counters of its own, and the older ones are empty there.
"""

from __future__ import annotations

from functools import partial

from rca.window.catalogue.signal import Signal, unused

_DEV = "DCGM_FI_DEV_NVLINK_"
_PROF = "DCGM_FI_PROF_NVLINK_"
#: Links of a GPU that have a field each.
_LINKS = 18
_errors = partial(
    Signal, channel="nvlink_errors", kind="counter", combine="sum", worse="higher", per_gpu=True
)
_bytes = partial(Signal, channel="nvlink_bytes", unit="B/s", combine="sum", per_gpu=True)
_OLD = {
    "CRC_FLIT_ERROR": "NVLink flit CRC errors",
    "CRC_DATA_ERROR": "NVLink data CRC errors",
    "REPLAY_ERROR": "NVLink retransmissions",
    "RECOVERY_ERROR": "NVLink recoveries",
}
#: Fields of NVLink 5: the name of DCGM before 4.5, and the later one.
_NVLINK_5 = {
    ("COUNT_RX_ERRORS", "RX_ERROR_TOTAL"): "received NVLink packets with errors",
    ("COUNT_LOCAL_LINK_INTEGRITY_ERRORS", "INTEGRITY_ERROR_TOTAL"): "NVLink integrity errors over the limit",
    ("COUNT_EFFECTIVE_ERRORS", "EFFECTIVE_ERROR_TOTAL"): "NVLink errors that error correction left",
    ("COUNT_LINK_RECOVERY_EVENTS", "RECOVERY_EVENT_TOTAL"): "NVLink recoveries",
    ("COUNT_TX_DISCARDS", "TX_DISCARD_TOTAL"): "discarded NVLink packets",
    ("ECC_DATA_ERROR_COUNT_TOTAL", "ECC_ERROR_TOTAL"): "NVLink ECC errors",
}
_PARTS = (
    *("COUNT_RX_MALFORMED_PACKET_ERRORS", "RX_PACKET_MALFORMED_TOTAL"),
    *("COUNT_RX_BUFFER_OVERRUN_ERRORS", "RX_PACKET_DROPPED_TOTAL"),
    *("COUNT_RX_GENERAL_ERRORS", "RX_GENERAL_ERROR_TOTAL"),
    *("COUNT_RX_REMOTE_ERRORS", "RX_REMOTE_ERROR_TOTAL"),
    *("COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", "RECOVERY_SUCCESSFUL_TOTAL"),
    *("COUNT_LINK_RECOVERY_FAILED_EVENTS", "RECOVERY_FAILED_TOTAL"),
)
_CORRECTED = (
    *("COUNT_RX_SYMBOL_ERRORS", "RX_SYMBOL_ERROR_TOTAL"),
    *("COUNT_SYMBOL_BER", "SYMBOL_BER_RAW", "COUNT_SYMBOL_BER_FLOAT", "SYMBOL_BER_RATIO"),
    *("COUNT_EFFECTIVE_BER", "EFFECTIVE_BER_RAW", "COUNT_EFFECTIVE_BER_FLOAT", "EFFECTIVE_BER_RATIO"),
)
_TRAFFIC = (
    *("BANDWIDTH_TOTAL", "THROUGHPUT_TOTAL"),
    *("COUNT_TX_BYTES", "TX_BYTES_TOTAL", "COUNT_RX_BYTES", "RX_BYTES_TOTAL"),
    *("COUNT_TX_PACKETS", "TX_PACKET_TOTAL", "COUNT_RX_PACKETS", "RX_PACKET_TOTAL"),
)

SIGNALS: tuple[Signal, ...] = (
    *(
        _errors(
            f"{_DEV}{kind}_COUNT_TOTAL",
            meaning=meaning,
            aliases=(f"{_DEV}{kind}_TOTAL", f"{_DEV}{kind}_PER_LINK_TOTAL"),
        )
        for kind, meaning in _OLD.items()
    ),
    *(
        _errors(f"{_DEV}{old}", meaning=meaning, aliases=(f"{_DEV}{new}",))
        for (old, new), meaning in _NVLINK_5.items()
    ),
    *(
        _bytes(
            f"{_PROF}{way}_BYTES",
            meaning=meaning,
            aliases=(
                f"{_PROF}{way}_BYTES_PER_LINK",
                *(f"{_PROF}L{link}_{way}_BYTES" for link in range(_LINKS)),
            ),
        )
        for way, meaning in (("TX", "NVLink bytes sent"), ("RX", "NVLink bytes received"))
    ),
    *unused(
        *(_DEV + name for name in _PARTS), meaning="a part of the NVLink errors above, or of the other end"
    ),
    *unused(
        *(_DEV + name for name in _CORRECTED), meaning="also grows on healthy links, which correct errors"
    ),
    *unused(*(_DEV + name for name in _TRAFFIC), meaning="depends on the job's work"),
)
