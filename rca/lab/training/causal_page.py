"""The page about the mechanisms: how well the data agreed with the graph at training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rca.causal.mechanisms import Mechanisms
from rca.lab.training.cause_graph import graph_as_dot


def causal_page(mechanisms: Mechanisms) -> str:
    """Markdown: falsification of the graph, refutation of every arrow, intervals, and the graph itself.

    Parameters
    ----------
    mechanisms : Mechanisms
        With the report of `rca.lab.training.mechanism_fit.fit_mechanisms`.
    """
    report = mechanisms.report
    parts = ["# The causal model of this bundle", ""]
    if "graph" in report:
        parts += _graph(report["graph"])
    if "arrows" in report:
        parts += _arrows(report["arrows"])
    if "mechanisms" in report:
        parts += _mechanisms(report["mechanisms"])
    parts += _intervals(mechanisms, report.get("intervals", {}))
    return "\n".join([*parts, "## Graph", "", "```dot", graph_as_dot(mechanisms.absent).rstrip(), "```", ""])


def falsification_verdict(found: Mapping[str, Any] | None) -> str:
    """One sentence (Markdown) on the falsification of the graph.

    Parameters
    ----------
    found : mapping, optional
        ``graph`` of a report; None if the graph was not tested.
    """
    if found is None:
        return "The graph was **not tested**."
    verdict = "not contradicted by the data" if found["holds"] else "CONTRADICTED by the data"
    return (
        f"The graph is **{verdict}**: {found['violations']} of the {found['tests']} independences it implies "
        f"fail ({found['rate']:.0%}) on {found['rows']:,} windows; it beats "
        f"{found['better_than_permuted']:.0%} of its permutations."
    )


def _graph(found: Mapping[str, Any]) -> list[str]:
    return [falsification_verdict(found), "", *_suggestions(found.get("suggestions", []))]


def _suggestions(pairs: list[list[str]]) -> list[str]:
    if not pairs:
        return []
    named = ", ".join(f"{first} and {second}" for first, second in pairs)
    return [
        f"Least independent of what it calls independent, for a person to judge: {named}.",
        "",
    ]


def _arrows(arrows: list[Mapping[str, Any]]) -> list[str]:
    lines = [
        "## Arrows",
        "",
        "Effect per unit of score, and what it becomes with a permuted treatment (should vanish), a random",
        "common cause and half of the rows (should stay). Arrows that fail are exported as 0.",
        "",
        "| arrow | exported | effect | placebo | random cause | subset | holds |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in arrows:
        numbers = (each[name] for name in ("effect", "placebo", "random_common_cause", "subset"))
        exported = each["slope"] if each["holds"] else 0.0
        lines.append(
            f"| {each['source']} -> {each['target']} | {exported:.4f} | "
            + " | ".join(f"{number:.4f}" for number in numbers)
            + f" | {'yes' if each['holds'] else 'no'} |"
        )
    return [*lines, ""]


def _mechanisms(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    lines = ["## Mechanisms", "", "| node | R squared | noise |", "|---|---|---|"]
    lines += [
        f"| {name} | {each['r_squared']:.2f} | {each['noise']:.4f} |" for name, each in sorted(found.items())
    ]
    return [*lines, ""]


def _intervals(mechanisms: Mechanisms, found: Mapping[str, Any]) -> list[str]:
    if not mechanisms.margins:
        return []
    lines = ["## Intervals", ""]
    if found:
        lines += [
            f"Bootstrap intervals at {found['level']:.0%} covered {found['before']:.1%} of the true costs of "
            f"{found['causes']:,} held-out causes, and are therefore widened, each end for itself. None "
            f"reaches beyond all that was lost by the answer; {found['beyond']:.1%} of the true costs did.",
            "",
        ]
    lines += [
        "| group | the lower end is multiplied by | the upper end moves towards all that was lost by |",
        "|---|---|---|",
    ]
    lines += [
        f"| {group} | {margin.below:.3f} | {margin.above:.0%} |"
        for group, margin in mechanisms.margins.items()
    ]
    return [*lines, ""]
