"""Measurements as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.stages import STAGES

MIB = 1024**2
#: What each stage's floor is.
FLOORS = {
    "parse": "orjson.loads, or pyarrow's IPC reader, of the same bytes",
    "validate, features": "every column summed once",
    "classify": "LightGBM alone: mode of the window, straggler of every rank",
    "causal": "one maximum over own work per rank and step",
    "render": "orjson.dumps of the finished answer",
    "HTTP": "the same body to a server that only receives it, plus the time in process",
}
#: What the product is meant to reach, on one core; shown, never asserted, because machines differ.
AIMS = (
    "64 ranks as JSON 25 ms p50 in process and 40 ms over HTTP",
    "10,240 ranks as Arrow 2 s and 2 GiB",
    "cold start 2 s",
)


def render(found: dict[str, Any], console: Console) -> None:
    """All tables of one result of `benchmarks.diagnosis`."""
    console.print(_overview(found["sizes"]))
    console.print(_stages(found["sizes"]))
    if "cold_start" in found:
        console.print(_cold_start(found["cold_start"]))
    for line in _notes(found):
        console.print(line, style="dim", highlight=False, soft_wrap=True)


def _overview(sizes: list[dict[str, Any]]) -> Table:
    table = Table(title="Diagnosis latency and peak memory", title_justify="left")
    for name in ("ranks", "as"):
        table.add_column(name)
    for name in (
        "body\nMiB",
        "in process\np50 ms",
        "\np99 ms",
        "x floor",
        "memory\nMiB",
        "HTTP\np50 ms",
        "\np99 ms",
        "x floor",
        "service\nMiB",
        "runs",
    ):
        table.add_column(name, justify="right")
    for size in sizes:
        total, floor = size["stages"]["total"], size["floors"]["total"]
        row = [
            f"{size['ranks']:,}",
            size["encoding"],
            f"{size['body_bytes'] / MIB:.1f}",
            _ms(total["p50"]),
            _ms(total["p99"]),
            _ratio(total["p50"], floor["p50"]),
            f"{size['memory_peak_bytes'] / MIB:.0f}",
        ]
        http, runs = size.get("http"), str(total["runs"])
        if http:
            service = http["service"]
            row += [
                _ms(service["p50"]),
                _ms(service["p99"]),
                _ratio(service["p50"], http["receive_only"]["p50"] + total["p50"]),
                f"{http['memory_peak_bytes'] / MIB:.0f}",
            ]
            runs += f" / {service['runs']}"
        else:
            row += [""] * 4
        table.add_row(*row, runs)
    return table


def _stages(sizes: list[dict[str, Any]]) -> Table:
    table = Table(title="Stages in process: p50 / floor in ms, and their ratio", title_justify="left")
    table.add_column("stage")
    for size in sizes:
        table.add_column(f"{size['ranks']:,}\n{size['encoding']}", justify="right")
    for stage in STAGES:
        table.add_row(stage, *(_cell(size, stage) for size in sizes), end_section=stage == "render")
    return table


def _cell(size: dict[str, Any], stage: str) -> str:
    taken, floor = size["stages"][stage]["p50"], size["floors"][stage]["p50"]
    return f"{_ms(taken)} / {_ms(floor)}  {_ratio(taken, floor)}"


def _cold_start(found: dict[str, Any]) -> Table:
    table = Table(title="Cold start: a fresh process", title_justify="left")
    for name in ("command", "median s", "slowest s", "x floor"):
        table.add_column(name, justify="left" if name == "command" else "right")
    floor = found["imports"]
    for name, taken in (
        (f"rca diagnose {found['window']}", found["diagnose"]),
        ("imports only (floor)", floor),
    ):
        table.add_row(name, f"{taken['p50']:.2f}", f"{taken['p99']:.2f}", _ratio(taken["p50"], floor["p50"]))
    return table


def _notes(found: dict[str, Any]) -> Iterator[str]:
    shape = found["shape"]
    yield (
        f"Window: ranks x {shape['steps']} steps x {shape['metrics']} metrics per rank, {shape['samples']} "
        f"samples per series, {shape['stages']} pipeline stage(s), one throttled GPU."
    )
    answers = {f"{size['ranks']:,} ranks": size["answer"] for size in found["sizes"]}
    yield "Answers: " + "; ".join(f"{ranks}: {answer}" for ranks, answer in answers.items()) + "."
    yield (
        "Floors, measured in the same run: "
        + "; ".join(f"{name}: {what}" for name, what in FLOORS.items())
        + "."
    )
    yield (
        f"Everything on core {found['core']}, client and server together; load average at the start "
        f"{found['load_average']:.2f}. p99 is the slowest run where there are fewer than 100. Peak memory "
        "is the whole process', interpreter and body included, of a fresh process per size."
    )
    yield "Aims: " + "; ".join(AIMS) + "."
    yield found["machine"]


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _ratio(value: float, floor: float) -> str:
    ratio = value / floor if floor > 0 else float("inf")
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.1f}x"
