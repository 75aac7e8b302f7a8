"""A comparison as tables of text, as ``realism.md`` and as ``realism.json``; largest differences first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rca.errors import SourceError
from rca.evaluation.intervals import Estimate
from rca.evaluation.realism.compare import Realism
from rca.evaluation.realism.discriminator import LEFT_OUT_PER_LAYER
from rca.evaluation.realism.effects import ALL, BEFORE, DURING, RATIO, Effect, largest
from rca.evaluation.realism.measure import columns
from rca.evaluation.tables import TextTable
from rca.robust import nan_median
from rca.telemetry.files import replace_file
from rca.whatif.result import finite

FORMAT = 2
#: Rows of a table of the largest differences: in the report, and in the terminal.
REPORT_ROWS, TERMINAL_ROWS = 40, 10
#: What the discriminator can do, by the upper bound of its AUC.
VERDICTS = (
    (0.6, "can hardly distinguish them"),
    (0.8, "distinguishes some of them"),
    (0.95, "distinguishes most of them"),
)


def write_report(found: Realism, folder: Path, title: str) -> None:
    """Write ``realism.md`` and ``realism.json``, each whole or not at all.

    Raises
    ------
    SourceError
        If the folder cannot be written.
    """
    import orjson

    try:
        folder.mkdir(parents=True, exist_ok=True)
        content = orjson.dumps(document(found), option=orjson.OPT_INDENT_2) + b"\n"
        replace_file(folder / "realism.json", content)
        replace_file(folder / "realism.md", markdown(found, title).encode())
    except OSError as error:
        raise SourceError(f"cannot write into {folder}: {error.strerror or error}") from error


def document(found: Realism) -> dict[str, Any]:
    """Every figure as plain data for JSON; unknown numbers are null."""
    held = found.discriminated
    plain: dict[str, Any] = finite(
        {
            "format": FORMAT,
            "seed": found.seed,
            "n_real": len(found.real),
            "n_simulated": len(found.simulated),
            "left_out": found.left_out,
            "effects": [_effect_row(effect) for effect in found.effects],
            "discriminator": {
                "auc": held.auc.as_row(),
                "auc_exact": held.exact.as_row(),
                "by_cause": {cause: auc.as_row() for cause, auc in held.by_cause.items()},
                "layers": [
                    {"auc": layer.auc.as_row(), "importance": layer.importance} for layer in held.layers
                ],
            },
        }
    )
    return plain


def _effect_row(effect: Effect) -> dict[str, Any]:
    sides = {"real": effect.real.as_row(), "simulated": effect.simulated.as_row(), "apart": effect.apart}
    return {**asdict(effect), **sides}


def markdown(found: Realism, title: str) -> str:
    """The report, largest differences first."""
    opening = (
        f"# Realism of the simulator, measured on {title}\n\n"
        f"{len(found.real)} real captures are compared with {len(found.simulated)} simulated twins. A twin "
        "has the job, victims, steps and slowdown of its capture; the simulator draws the rest.\n\n"
        "Brackets are 95 % bootstrap intervals over windows. Doublings are log2 of real over simulated. A "
        "quantile is the place of the real median in the simulated windows. A difference is listed if the "
        "intervals are disjoint and the real median is outside the simulated 5 to 95 %."
    )
    if found.left_out:
        opening += f"\n\n{len(found.left_out)} captures are left out: a fault had no visible effect."
    tables = (
        effects_table(found, REPORT_ROWS),
        levels_table(found),
        discriminator_table(found),
        importance_table(found, REPORT_ROWS),
        layers_table(found),
    )
    parts = [opening, summary_table(found).to_markdown(), *(table.to_markdown() for table in tables)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def terminal_tables(found: Realism) -> list[TextTable]:
    """The tables for a terminal, without empty ones."""
    tables = (
        summary_table(found),
        discriminator_table(found),
        importance_table(found, TERMINAL_ROWS),
        effects_table(found, TERMINAL_ROWS),
    )
    return [table for table in tables if table.rows]


def summary_table(found: Realism) -> TextTable:
    """Each part in one line: the number of differences, and the largest one."""
    ratios = [effect for effect in found.effects if effect.moment == RATIO]
    levels = [effect for effect in found.effects if effect.mechanism == ALL]
    held = found.discriminated
    rows = (
        ("effect sizes", _count_apart(ratios), _largest_in_words(ratios)),
        ("levels before any fault", _count_apart(levels), _largest_in_words(levels)),
        ("discriminator", f"AUC {interval(held.auc)}", next(iter(held.importance), "-")),
    )
    title = f"realism: {len(found.real)} captures, {len(found.simulated)} simulated windows"
    return TextTable(title, ("part", "result", "largest difference"), rows)


def effects_table(found: Realism, n: int) -> TextTable:
    """The ratios that are apart: changes that faults make larger, or smaller, than in reality."""
    by_key = {(one.mechanism, one.quantity, one.moment): one for one in found.effects}
    rows = []
    for effect in largest([one for one in found.effects if one.moment == RATIO], n):
        before, during = (by_key.get((effect.mechanism, effect.quantity, one)) for one in (BEFORE, DURING))
        rows.append(
            (
                effect.mechanism,
                effect.quantity,
                interval(effect.real),
                interval(effect.simulated),
                _levels(before, during, lambda one: one.real),
                _levels(before, during, lambda one: one.simulated),
                before.unit if before else "",
                f"{effect.doublings:+.1f}",
            )
        )
    ratios = ("real ratio", "simulated ratio")
    header = ("mechanism", "quantity", *ratios, "real", "simulated", "unit", "doublings")
    return TextTable("largest differences of effect sizes", header, tuple(rows))


def _levels(before: Effect | None, during: Effect | None, side: Callable[[Effect], Estimate]) -> str:
    """Medians before and during, of one side."""
    if before is None or during is None:
        return "-"
    return f"{_number(side(before).value)} to {_number(side(during).value)}"


def levels_table(found: Realism) -> TextTable:
    """Levels of ranks before any fault, those with the most doublings first."""
    known = [one for one in found.effects if one.mechanism == ALL and np.isfinite(one.doublings)]
    rows = [
        (
            effect.quantity.removeprefix("peers "),
            effect.unit,
            interval(effect.real),
            interval(effect.simulated),
            _number(effect.quantile),
            f"{effect.doublings:+.1f}",
        )
        for effect in sorted(known, key=lambda one: -abs(one.doublings))
    ]
    header = ("quantity", "unit", "real", "simulated", "quantile", "doublings")
    return TextTable("levels before any fault", header, tuple(rows))


def discriminator_table(found: Realism) -> TextTable:
    """AUC of the discriminator in total and by cause."""
    held = found.discriminated
    parts = {"all, features exact": held.exact, "all, features rounded": held.auc, **held.by_cause}
    rows = tuple((name, interval(auc), f"{auc.n}", verdict(auc.value)) for name, auc in parts.items())
    return TextTable("discriminator", ("windows", "AUC", "captures", "the discriminator"), rows)


def verdict(auc: float) -> str:
    """An area under the ROC curve in words."""
    if not np.isfinite(auc):
        return "has too few captures to be fitted"
    return next((text for top, text in VERDICTS if auc < top), "distinguishes nearly all of them")


def importance_table(found: Realism, n: int) -> TextTable:
    """The features that the discriminator uses most, with their medians on both sides."""
    medians = [
        dict(zip(columns(), nan_median(np.array([one.features for one in side])), strict=True))
        for side in (found.real, found.simulated)
    ]
    rows = [
        (name, f"{share:.0%}", *(_number(float(side[name])) for side in medians))
        for name, share in list(found.discriminated.importance.items())[:n]
    ]
    header = ("feature", "share of gain", "real median", "simulated median")
    return TextTable("features that the discriminator uses", header, tuple(rows))


def layers_table(found: Realism) -> TextTable:
    """AUC without the features that the layers before used most."""
    rows = [
        (
            f"without the first {LEFT_OUT_PER_LAYER * number}",
            interval(layer.auc),
            ", ".join(list(layer.importance)[:LEFT_OUT_PER_LAYER]),
        )
        for number, layer in enumerate(found.discriminated.layers)
    ]
    title = "discriminator without the features that it uses most"
    return TextTable(title, ("features", "AUC", "uses most"), tuple(rows))


def interval(estimate: Estimate) -> str:
    """``value [low, high]`` with three digits, or a dash."""
    if estimate.n == 0:
        return "-"
    return f"{_number(estimate.value)} [{_number(estimate.low)}, {_number(estimate.high)}]"


def _number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "-"


def _count_apart(found: Sequence[Effect]) -> str:
    return f"{sum(effect.apart for effect in found)} of {len(found)} apart"


def _largest_in_words(found: Sequence[Effect]) -> str:
    worst = largest(found, 1)
    if not worst:
        return "-"
    first = worst[0]
    values = f"real {first.real.value:.3g}, simulated {first.simulated.value:.3g}"
    return f"{first.mechanism}: {first.quantity} {first.moment}, {values}"
