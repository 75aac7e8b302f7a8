"""What other tools measured about the speed of ranks, as our readers of their files name it."""

from __future__ import annotations

from functools import partial

from rca.window.catalogue.signal import Signal

#: The worst section of a rank counts.
_slowdown = partial(Signal, unit="ratio", combine="max", worse="higher")

SIGNALS: tuple[Signal, ...] = (
    Signal(
        "nccl_inspector_waited_for_ratio",
        "waited_for",
        "time that others wait for the rank less its own, over all time in collectives (NCCL Inspector)",
        "ratio",
        worse="higher",
    ),
    _slowdown(
        "nvrx_gpu_relative_slowdown",
        "gpu_slowdown",
        "kernel times over those of the fastest rank (NVRx)",
    ),
    _slowdown(
        "nvrx_gpu_individual_slowdown",
        "gpu_slowdown_of_past",
        "kernel times over the rank's own shortest ones (NVRx)",
    ),
    _slowdown(
        "nvrx_section_relative_slowdown",
        "section_slowdown",
        "time of a section over that of the fastest rank (NVRx)",
    ),
    _slowdown(
        "nvrx_section_individual_slowdown",
        "section_slowdown_of_past",
        "time of a section over the rank's own shortest one (NVRx)",
    ),
    Signal("nvrx_straggler", "found_slow", "called a straggler by NVRx", "1", worse="higher"),
    Signal(
        "megatron_straggler",
        "found_slow",
        "the slowest rank of a report of Megatron's straggler detector",
        "1",
        worse="higher",
    ),
)
