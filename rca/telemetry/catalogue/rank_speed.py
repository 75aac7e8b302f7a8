"""What other tools measured about the speed of ranks, as our readers of their files name it."""

from __future__ import annotations

from rca.telemetry.catalogue.signal import Signal

SIGNALS: tuple[Signal, ...] = (
    Signal(
        "nccl_inspector_waited_for_ratio",
        "waited_for",
        "share of the time in collectives in which others wait for the rank (NCCL Inspector)",
        "ratio",
        worse="higher",
    ),
)
