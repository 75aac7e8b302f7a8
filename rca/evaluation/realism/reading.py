"""A comparison as tables of text, largest differences first: a terminal and a report print the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rca.evaluation.intervals import Estimate
from rca.evaluation.realism.discriminator import PEELED
from rca.evaluation.realism.effects import ALL, BEFORE, DURING, RATIO, Effect, largest
from rca.evaluation.realism.features import FeatureDistance, largest_distances, missing_differences
from rca.evaluation.realism.run import Realism
from rca.evaluation.realism.traces import CAUSES, TraceComparison
from rca.evaluation.tables import TextTable

#: Rows of a table of largest differences.
MOST = 20
#: How well the discriminator does, in words.
VERDICTS = (
    (0.6, "can hardly tell them apart"),
    (0.8, "tells them apart at times"),
    (0.95, "mostly tells them apart"),
)


def verdict(auc: float) -> str:
    """What an area under the ROC curve says about the simulator, in one clause."""
    if not np.isfinite(auc):
        return "had too few captures to be fitted"
    return next((text for top, text in VERDICTS if auc < top), "tells them apart nearly always")


def summary_table(found: Realism) -> TextTable:
    """Each part in one line: what was compared, how much differs, the largest difference."""
    ratios = [effect for effect in found.effects if effect.moment == RATIO]
    levels = [effect for effect in found.effects if effect.mechanism == ALL]
    tested = [each for each in found.features if np.isfinite(each.q)]
    differing = [each for each in tested if each.differs]
    top = largest_distances(found.features, 1)
    held = found.discriminated
    rows = [
        ("effect sizes", _apart(ratios), _named(ratios)),
        ("levels before any fault", _apart(levels), _named(levels)),
        ("slowdown at severity", _apart(found.at_severity), _named(found.at_severity)),
        (
            "features",
            f"{len(differing)} of {len(tested)} differ",
            f"{top[0].feature} ({top[0].cause})" if top else "-",
        ),
        ("medians of features", *_uncovered(tested)),
        ("discriminator", f"AUC {interval(held.auc)}", next(iter(held.importance), "-")),
    ]
    rows += [_trace_row(each) for each in found.traces]
    title = f"realism: {len(found.real)} captures, {len(found.simulated)} simulated windows"
    return TextTable(title, ("part", "finding", "largest difference"), tuple(rows))


def _uncovered(tested: Sequence[FeatureDistance]) -> tuple[str, str]:
    """How many real medians no simulated range reaches, and the first of them over all windows or causes."""
    left = sorted((each for each in tested if not each.covered), key=lambda each: -each.distance.ks)
    named = f"{left[0].feature} ({left[0].cause})" if left else "-"
    return f"{len(left)} of {len(tested)} outside the simulated 5 to 95 %", named


def effects_table(effects: Sequence[Effect], n: int = MOST) -> TextTable:
    """What faults change more, or less, than in reality: ratios that are clearly apart."""
    by_key = {(one.mechanism, one.quantity, one.moment): one for one in effects}
    rows = []
    for effect in largest([one for one in effects if one.moment == RATIO], n):
        calm, hurt = (by_key.get((effect.mechanism, effect.quantity, moment)) for moment in (BEFORE, DURING))
        rows.append(
            (
                effect.mechanism,
                effect.quantity,
                interval(effect.real),
                interval(effect.simulated),
                _levels(calm, hurt, lambda one: one.real),
                _levels(calm, hurt, lambda one: one.simulated),
                calm.unit if calm else "",
                f"{effect.doublings:+.1f}",
            )
        )
    header = (
        "mechanism",
        "quantity",
        "real ratio",
        "simulated ratio",
        "real",
        "simulated",
        "unit",
        "doublings",
    )
    return TextTable("largest differences of effect sizes", header, tuple(rows))


def _levels(calm: Effect | None, hurt: Effect | None, side: Callable[[Effect], Estimate]) -> str:
    """Medians before and during, of one side."""
    if calm is None or hurt is None:
        return "-"
    return f"{_number(side(calm).value)} to {_number(side(hurt).value)}"


def severity_table(effects: Sequence[Effect]) -> TextTable:
    """Every slowdown at a labelled severity, apart or not."""
    rows = [
        (
            effect.mechanism,
            effect.moment.removeprefix("at severity "),
            interval(effect.real),
            interval(effect.simulated),
            _number(effect.quantile),
            f"{effect.real.n}",
        )
        for effect in effects
    ]
    header = ("mechanism", "severity", "real ratio", "simulated ratio", "quantile", "captures")
    return TextTable("step time at the labelled severity", header, tuple(rows))


def levels_table(effects: Sequence[Effect]) -> TextTable:
    """Levels of ranks to which nothing was done (yet), apart or not, the furthest apart first."""
    levels = [effect for effect in effects if effect.mechanism == ALL]
    known = [effect for effect in levels if np.isfinite(effect.doublings)]
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


def features_table(found: Sequence[FeatureDistance], title: str, n: int = MOST) -> TextTable:
    """The features whose distributions differ most within a cause."""
    rows = [
        (
            each.feature,
            each.cause,
            _number(each.distance.ks),
            _number(each.distance.wasserstein),
            f"{each.q:.0e}",
            _number(each.distance.real),
            _number(each.distance.simulated),
        )
        for each in largest_distances(found, n)
    ]
    header = ("feature", "cause", "KS", "Wasserstein", "q", "real median", "simulated median")
    return TextTable(title, header, tuple(rows))


def missing_table(found: Sequence[FeatureDistance]) -> TextTable:
    """Features that one side lacks more often."""
    rows = [
        (each.feature, f"{each.distance.missing_real:.0%}", f"{each.distance.missing_simulated:.0%}")
        for each in missing_differences(found, MOST)
    ]
    return TextTable("features that one side lacks", ("feature", "real NaN", "simulated NaN"), tuple(rows))


def discriminator_table(found: Realism) -> TextTable:
    """How well real and simulated are told apart, in total and by cause."""
    held = found.discriminated
    parts = {"all, features exact": held.exact, "all, features rounded": held.auc, **held.by_cause}
    rows = tuple((name, interval(auc), f"{auc.n}", verdict(auc.value)) for name, auc in parts.items())
    return TextTable("discriminator", ("windows", "AUC", "captures", "the discriminator"), rows)


def layers_table(found: Realism) -> TextTable:
    """What is left to tell real from simulated once the most telling features are taken away."""
    rows = [
        (
            f"without the first {PEELED * number}",
            interval(layer.auc),
            ", ".join(list(layer.importance)[:PEELED]),
        )
        for number, layer in enumerate(found.discriminated.layers)
    ]
    header = ("features", "AUC", "relied on most")
    return TextTable("what is left without the most telling features", header, tuple(rows))


def importance_table(found: Realism, n: int = MOST) -> TextTable:
    """What the discriminator relied on, with how the feature differs over all windows."""
    overall = {each.feature: each.distance for each in found.features if each.cause == "all"}
    rows = [
        (
            name,
            f"{share:.0%}",
            _number(overall[name].ks),
            _number(overall[name].real),
            _number(overall[name].simulated),
        )
        for name, share in list(found.discriminated.importance.items())[:n]
    ]
    header = ("feature", "share of gain", "KS", "real median", "simulated median")
    return TextTable("what the discriminator relied on", header, tuple(rows))


def trace_table(found: TraceComparison) -> TextTable:
    """A trace's figures beside simulated jobs of its shape."""
    rows = []
    for name in found.names:
        cells = [_number(found.value(found.real, name))]
        for cause in CAUSES:
            held = found.sample(cause, name)
            held = held[np.isfinite(held)]
            shown = "-" if not held.size else " .. ".join(map(_number, np.quantile(held, (0.1, 0.5, 0.9))))
            cells += [shown, _number(found.quantile(cause, name))]
        rows.append((name, *cells))
    heads = [head for cause in CAUSES for head in (f"simulated {cause} (10, 50, 90 %)", "quantile")]
    return TextTable(f"trace {found.name}", ("figure", "real", *heads), tuple(rows))


def interval(estimate: Estimate) -> str:
    """``value [low, high]`` with three digits, or a dash."""
    if estimate.n == 0:
        return "-"
    return f"{_number(estimate.value)} [{_number(estimate.low)}, {_number(estimate.high)}]"


def _number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "-"


def _apart(found: Sequence[Effect]) -> str:
    return f"{sum(effect.apart for effect in found)} of {len(found)} apart"


def _named(found: Sequence[Effect]) -> str:
    """The largest difference in words."""
    worst = largest(found, 1)
    if not worst:
        return "-"
    first = worst[0]
    values = f"real {first.real.value:.3g}, simulated {first.simulated.value:.3g}"
    return f"{first.mechanism}: {first.quantity} {first.moment}, {values}"


def _trace_row(found: TraceComparison) -> tuple[str, str, str]:
    outside = [
        name
        for name in found.names
        if all(not 0.05 <= found.quantile(cause, name) <= 0.95 for cause in CAUSES)
        and np.isfinite(found.quantile(CAUSES[0], name))
    ]
    shown = [name for name in found.names if np.isfinite(found.quantile(CAUSES[0], name))]
    return (
        f"trace {found.name}",
        f"{len(outside)} of {len(shown)} figures outside",
        outside[0] if outside else "-",
    )
