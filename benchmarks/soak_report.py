"""The tables of a soak."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.soak_load import BROKEN, KINDS, Outcome, statuses

MIB = 1024**2
SHED = (429, 503)


def latencies(outcomes: list[Outcome]) -> dict[str, Any]:
    """Of a phase: how requests ended, and how long those took that were answered, by size and by way."""
    ended = statuses(outcomes)
    shed = sum(ended[status] for status in SHED)
    answered = [each for each in outcomes if each.status in (200, 202)]
    direct = [each for each in answered if each.status == 200]
    return {
        "requests": len(outcomes),
        "answered": len(answered),
        "shed": shed,
        "broken": ended[BROKEN],
        "other": len(outcomes) - len(answered) - shed - ended[BROKEN],
        "sizes": {
            f"{kind.ranks} {kind.encoding}": _quantiles([each for each in direct if each.kind == kind])
            for kind in KINDS
        },
        "all": _quantiles(direct),
        "later": _quantiles([each for each in answered if each.status == 202]),
    }


def _quantiles(outcomes: list[Outcome]) -> dict[str, float]:
    seconds = [outcome.seconds for outcome in outcomes]
    if not seconds:
        return {"n": 0, "p50": float("nan"), "p99": float("nan")}
    p50, p99 = np.quantile(seconds, [0.5, 0.99], method="higher")
    return {"n": len(seconds), "p50": float(p50), "p99": float(p99)}


def kept_under_overload(capacity: dict[str, Any], overload: dict[str, Any]) -> dict[str, float]:
    """Of the capacity, the share that is left under overload, three times over.

    Accepted and diagnosed windows per second, and accepted windows per second of processor time of
    callers and service together. The last one hardly depends on what else the machine does.
    """

    def rates(phase: dict[str, Any]) -> dict[str, float]:
        accepted = phase["answered"] / phase["seconds"]
        return {
            "accepted": accepted,
            "diagnosed": phase["diagnosed"] / phase["seconds"],
            "accepted per processor second": accepted / sum(phase["cores"].values()),
        }

    at_most, under = rates(capacity), rates(overload)
    return {name: under[name] / rate for name, rate in at_most.items() if rate}


def render(found: dict[str, Any], console: Console) -> None:
    """Everything that a soak found."""
    console.print(_phases(found))
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found["kept_under_overload"].items())
    console.print(f"Kept at 4 times the capacity: {shares}. Asked: 90 %.", highlight=False, soft_wrap=True)
    console.print(_latency(found["phases"]))
    console.print(_memory(found["memory"]))
    kept, floor = found["kept"], found["floor"]
    console.print(
        f"Acknowledged {kept['acknowledged']:,}, found afterwards {kept['found']:,}, lost {kept['lost']:,}, "
        f"duplicated {kept['duplicated']:,}; rows without an acknowledgement {kept['unclaimed']:,}.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"Floor: the same mix decoded, diagnosed and written in process, {floor['seconds'] * 1e3:.1f} ms a "
        f"window; {found['processes']} such processes make {floor['rate']:.1f} windows/s. Callers share the "
        f"{found['cores']} cores with the service. Load average at the start {found['load_average']:.1f}.",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
    console.print(found["machine"], style="dim", highlight=False, soft_wrap=True)


def _phases(found: dict[str, Any]) -> Table:
    table = Table(title="Throughput, requests and windows per second", title_justify="left")
    table.add_column("phase")
    cores = ("callers", "API", "pool")
    names = ("s", "offered", "answered", "diagnosed", "of floor", "shed", "broken", "other")
    for name in (*names, *(f"{each}, cores" for each in cores)):
        table.add_column(name, justify="right")
    for name, phase in found["phases"].items():
        seconds = phase["seconds"]
        table.add_row(
            name,
            f"{seconds:.0f}",
            f"{phase['requests'] / seconds:.1f}",
            f"{phase['answered'] / seconds:.1f}",
            f"{phase['diagnosed'] / seconds:.1f}",
            f"{phase['diagnosed'] / seconds / found['floor']['rate']:.0%}",
            f"{phase['shed'] / max(1, phase['requests']):.1%}",
            str(phase["broken"]),
            str(phase["other"]),
            *(f"{phase['cores'][each]:.2f}" for each in cores),
        )
    return table


def _latency(phases: dict[str, Any]) -> Table:
    table = Table(title="Seconds until the answer, from when the request was due", title_justify="left")
    table.add_column("ranks")
    for name in phases:
        for what in ("n", "p50", "p99"):
            table.add_column(f"{name}\n{what}" if what == "n" else f"\n{what}", justify="right")
    named = [*next(iter(phases.values()))["sizes"], "all", "later"]
    for row in named:
        cells: list[str] = []
        for phase in phases.values():
            held = phase["sizes"].get(row) or phase[row]
            cells += [f"{held['n']:,}", f"{held['p50']:.3f}", f"{held['p99']:.3f}"]
        table.add_row("202, to be done later" if row == "later" else row, *cells)
    return table


def _memory(memory: dict[str, Any]) -> Table:
    table = Table(
        title="Memory in the steady phase, MiB: mean of its first and last third", title_justify="left"
    )
    table.add_column("process")
    for name in ("resident first", "last", "change", "proportional first", "last", "change"):
        table.add_column(name, justify="right")
    for name, held in memory.items():
        cells = []
        for kind in ("resident", "proportional"):
            first, last = held[kind]
            cells += [f"{first / MIB:.1f}", f"{last / MIB:.1f}", f"{last / first - 1:+.1%}" if first else ""]
        table.add_row(name, *cells)
    return table
