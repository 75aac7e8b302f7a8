"""The meaning of one exported metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Kind = Literal["gauge", "counter", "state"]
Worse = Literal["higher", "lower", "either"]
Combine = Literal["sum", "mean", "max"]

_NONE: Mapping[str, str | None] = MappingProxyType({})


# There is one object per catalogue entry, so identity is equality.
@dataclass(frozen=True, eq=False)
class Signal:
    """One metric as its exporter names it, and the channel its samples feed.

    Attributes
    ----------
    name : str
        The exporter's current name.
    channel : str or None
        Our short id; None for a metric that is known and deliberately unused. Several signals may
        feed one channel. They then share `kind`, `unit` and `combine`.
    unit : str
        Of one sample after `scale`. A counter's channel has this unit per second.
    kind : {"gauge", "counter", "state"}
        A state is a code (such as an XID) that must not be averaged.
    combine : {"sum", "mean", "max"}
        How the devices and signals of a rank or node become one value. Amounts are added, clocks and
        fractions averaged; of queues and disks the worst counts.
    worse : {"higher", "lower", "either"}
        The direction that indicates a fault; "either" if it depends on the load.
    aliases : tuple of str
        Names of other exporters and older versions, in the same unit. Case and ``_total`` do not matter.
    modes : mapping of str to str or None
        A part of the device (``3/steal``) that decides the channel.
    split : str or None
        For signals of a process. `channel` is the sum over the rank's processes. Devices that start with
        ``host`` or ``loader`` also feed ``host_<split>`` or ``loader_<split>``.
    per_gpu : bool
        The device is a GPU index, which belongs to the rank that `job.ranks` places on it.
    ignored_devices : tuple of str
        Devices without a meaning for the machine's health (loopback).
    scale : float
        Factor from the exporter's unit to `unit`.
    momentary : bool
        A sample shows one moment of something that changes within milliseconds, such as the length of a
        queue. A few high samples are chance (`rca.window.signals.series`).
    bits : int
        If not 0, a sample is a bit mask. It counts as 1 if one of these bits is set, else as 0, so that the
        channel is the share of time in such a state.
    """

    name: str
    channel: str | None
    meaning: str
    unit: str = "1"
    kind: Kind = "gauge"
    combine: Combine = "mean"
    worse: Worse = "either"
    aliases: tuple[str, ...] = ()
    modes: Mapping[str, str | None] = field(default_factory=lambda: _NONE)
    split: str | None = None
    per_gpu: bool = False
    ignored_devices: tuple[str, ...] = ()
    scale: float = 1.0
    momentary: bool = False
    bits: int = 0

    def channels(self, device: str | None) -> tuple[str, ...]:
        """Every channel that a series of this signal with this device feeds."""
        parts = (device or "").lower().split("/")
        if parts[0] in self.ignored_devices:
            return ()
        channel = next((self.modes[part] for part in parts if part in self.modes), self.channel)
        held = () if channel is None else (channel,)
        if self.split is None:
            return held
        process = next((kind for kind in ("host", "loader") if parts[0].startswith(kind)), None)
        return held if process is None else (*held, f"{process}_{self.split}")

    def all_channels(self) -> tuple[str, ...]:
        """Every channel that any series of this signal may feed."""
        held = [self.channel, *self.modes.values()]
        if self.split is not None:
            held += [f"host_{self.split}", f"loader_{self.split}"]
        return tuple(dict.fromkeys(channel for channel in held if channel is not None))


def unused(*names: str, meaning: str) -> tuple[Signal, ...]:
    """Metrics that no channel uses; they are listed so that they do not count as unknown."""
    return tuple(Signal(name, None, meaning) for name in names)
