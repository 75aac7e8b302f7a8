"""The signal catalogue: which exporter metrics a diagnosis uses, and what they mean.

Exporters rename metrics. A name is therefore looked up through its aliases; case and a trailing ``_total`` do
not matter. A name in no list is unknown: it is reported, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rca.window.catalogue import gpu, host, network, nvlink, opentelemetry, process, rank_speed
from rca.window.catalogue.signal import Signal

__all__ = ["KNOWN", "Signal", "channels", "resolve", "to_markdown", "unit_of_channel"]

KNOWN: tuple[Signal, ...] = (
    *gpu.SIGNALS,
    *nvlink.SIGNALS,
    *opentelemetry.SIGNALS,
    *network.SIGNALS,
    *host.SIGNALS,
    *process.SIGNALS,
    *rank_speed.SIGNALS,
)


def _key(name: str) -> str:
    return name.lower().removesuffix("_total")


def _index(signals: tuple[Signal, ...]) -> Mapping[str, Signal]:
    index: dict[str, Signal] = {}
    for signal in signals:
        for name in (signal.name, *signal.aliases):
            if index.setdefault(_key(name), signal) is not signal:
                raise ValueError(f"{name} is the name of two signals")
    return MappingProxyType(index)


def _by_channel(signals: tuple[Signal, ...]) -> Mapping[str, tuple[Signal, ...]]:
    feeding: dict[str, list[Signal]] = {}
    for signal in signals:
        for channel in signal.all_channels():
            feeding.setdefault(channel, []).append(signal)
    return MappingProxyType({channel: tuple(held) for channel, held in feeding.items()})


_BY_NAME = _index(KNOWN)
_BY_CHANNEL = _by_channel(KNOWN)


def resolve(name: str) -> Signal | None:
    """The signal of an exporter's metric name, None if it is unknown."""
    return _BY_NAME.get(_key(name))


def channels() -> Mapping[str, tuple[Signal, ...]]:
    """Every channel and the signals that feed it."""
    return _BY_CHANNEL


def unit_of_channel(channel: str) -> str:
    """Unit of a binned channel: the signal's own, per second for counters; empty if unknown."""
    signals = _BY_CHANNEL.get(channel)
    if not signals:
        return ""
    signal = signals[0]
    return f"{signal.unit}/s" if signal.kind == "counter" else signal.unit


def to_markdown() -> str:
    """The catalogue as Markdown tables: the channels with their signals, then the unused signals."""
    lines = [
        "| channel | unit | kind | devices | worse | exporter names | meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    for channel, signals in sorted(_BY_CHANNEL.items()):
        first = signals[0]
        names = ", ".join(f"`{name}`" for signal in signals for name in (signal.name, *signal.aliases))
        meaning = "; ".join(dict.fromkeys(signal.meaning for signal in signals))
        lines.append(
            f"| `{channel}` | {unit_of_channel(channel)} | {first.kind} | {first.combine} "
            f"| {first.worse} | {names} | {meaning} |"
        )
    lines += ["", "| known, not used | why |", "|---|---|"]
    lines += [
        f"| `{signal.name}` | {signal.meaning} |"
        for signal in sorted(KNOWN, key=lambda signal: signal.name)
        if not signal.all_channels()
    ]
    return "\n".join(lines) + "\n"
