"""The comparison as pictures: straight from Figure, without pyplot, so no global state and no display."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np

from rca.arrays import FloatArray
from rca.errors import MissingExtra
from rca.evaluation.realism.effects import Effect
from rca.evaluation.realism.features import ALL, FeatureDistance, largest_distances
from rca.evaluation.realism.run import Realism
from rca.evaluation.realism.traces import CAUSES, TraceComparison
from rca.evaluation.rows import HEALTHY, in_order
from rca.telemetry.causes import CAUSES as CATALOGUE

REAL, SIMULATED = "#b5402a", "#2f6f9f"
#: Rows of a heat map.
MOST_ROWS = 32
#: Colours saturate at so many doublings.
SATURATION = 3.0
DPI = 110


def pictures(found: Realism) -> dict[str, bytes]:
    """Every picture as PNG by file name.

    Raises
    ------
    MissingExtra
        Without matplotlib.
    """
    drawn = {
        "severity.png": _severity(found.at_severity),
        "effects.png": _effects(found.effects),
        "features.png": _features(found.features),
        "discriminator.png": _discriminator(found),
    }
    for trace in found.traces:
        drawn[f"trace-{trace.name}.png"] = _trace(trace)
    return {name: _png(figure) for name, figure in drawn.items()}


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            "pictures of a comparison need matplotlib", hint="pip install 'straggler-rca[train]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def _png(figure: Any) -> bytes:
    content = BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    return content.getvalue()


def _severity(effects: Sequence[Effect]) -> Any:
    """Slowdown at each labelled severity, real beside simulated, with intervals."""
    figure = _figure(8.0, 1.6 + 0.26 * len(effects))
    axes = figure.add_subplot()
    place = np.arange(len(effects))
    for colour, shift, side in ((REAL, -0.13, "real"), (SIMULATED, 0.13, "simulated")):
        held = [effect.real if side == "real" else effect.simulated for effect in effects]
        value = np.array([one.value for one in held])
        reach = np.abs(np.array([(one.low, one.high) for one in held]).reshape(-1, 2).T - value)
        axes.errorbar(value, place + shift, xerr=reach, fmt="o", ms=4, color=colour, label=side)
    axes.set_yticks(place, [f"{effect.mechanism}, {effect.moment}" for effect in effects])
    axes.set_ylim(len(effects) - 0.5, -0.5)
    axes.axvline(1.0, color="grey", lw=0.8)
    axes.set(
        xlabel="step time during over before (median, 95 % interval)",
        title="slowdown at the labelled severity",
    )
    if len(effects):
        axes.legend()
    return figure


def _effects(effects: Sequence[Effect]) -> Any:
    """Doublings of real over simulated ratios, quantities by mechanisms."""
    kept = [effect for effect in effects if effect.moment == "ratio" and np.isfinite(effect.doublings)]
    worst: dict[str, float] = {}
    for effect in kept:
        weight = abs(effect.doublings) if effect.apart else 0.0
        worst[effect.quantity] = max(worst.get(effect.quantity, 0.0), weight)
    rows = sorted(worst, key=lambda name: -worst[name])[:MOST_ROWS]
    columns = sorted({effect.mechanism for effect in kept})
    values = np.full((len(rows), len(columns)), np.nan)
    for effect in kept:
        if effect.quantity in rows:
            values[rows.index(effect.quantity), columns.index(effect.mechanism)] = effect.doublings
    title = "how much more a fault changes in reality than in simulation (doublings of the ratio)"
    return _heat(values, rows, columns, title, "RdBu_r", SATURATION)


def _features(found: Sequence[FeatureDistance]) -> Any:
    """Kolmogorov-Smirnov statistic of the features that differ most, by cause."""
    rows = [each.feature for each in largest_distances(found, MOST_ROWS)]
    shown = {each.cause for each in found if np.isfinite(each.distance.ks)}
    columns = in_order(shown, (ALL, HEALTHY, *CATALOGUE))
    values = np.full((len(rows), len(columns)), np.nan)
    for each in found:
        if each.feature in rows and each.cause in columns:
            values[rows.index(each.feature), columns.index(each.cause)] = each.distance.ks
    return _heat(values, rows, columns, "Kolmogorov-Smirnov distance of features", "Blues", None)


def _heat(
    values: FloatArray,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    colours: str,
    reach: float | None,
) -> Any:
    figure = _figure(4.0 + 0.42 * len(columns), 2.4 + 0.24 * len(rows))
    axes = figure.add_subplot()
    low, high = (0.0, 1.0) if reach is None else (-reach, reach)
    if values.size:
        image = axes.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto")
        figure.colorbar(image, ax=axes, shrink=0.6)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_title(title, fontsize=10)
    return figure


def _discriminator(found: Realism) -> Any:
    held = found.discriminated
    figure = _figure(11.0, 5.0)
    left, right = figure.subplots(1, 2)
    parts = {ALL: held.auc, **held.by_cause}
    value = np.array([one.value for one in parts.values()])
    reach = np.abs(np.array([(one.low, one.high) for one in parts.values()]).T - value)
    left.errorbar(value, range(len(parts)), xerr=reach, fmt="o", color=SIMULATED)
    left.set_yticks(range(len(parts)), list(parts))
    left.invert_yaxis()
    left.axvline(0.5, color="grey", lw=0.8)
    left.set(xlim=(0.0, 1.02), xlabel="AUC, out of fold (0.5: cannot tell)", title="real against simulated")
    top = list(held.importance.items())[:20]
    right.barh(range(len(top)), [share for _, share in top], color=REAL)
    right.set_yticks(range(len(top)), [name for name, _ in top], fontsize=8)
    right.invert_yaxis()
    right.set(xlabel="share of gain", title="by what")
    return figure


def _trace(found: TraceComparison) -> Any:
    """Each figure's simulated distributions, the trace's own value across them."""
    names = [name for name in found.names if np.isfinite(found.quantile(CAUSES[0], name))]
    n_columns = min(3, max(len(names), 1))
    n_rows = -(-max(len(names), 1) // n_columns)
    figure = _figure(3.6 * n_columns, 2.6 * n_rows)
    for position, name in enumerate(names, start=1):
        axes = figure.add_subplot(n_rows, n_columns, position)
        samples = [found.sample(cause, name) for cause in CAUSES]
        axes.boxplot([held[np.isfinite(held)] for held in samples], whis=(5, 95), showfliers=False)
        axes.set_xticks(range(1, len(CAUSES) + 1), CAUSES, fontsize=7)
        axes.axhline(found.value(found.real, name), color=REAL, lw=1.5)
        axes.set_title(name, fontsize=9)
    figure.suptitle(f"trace {found.name} (line) among simulated jobs (boxes: 5 to 95 %)", fontsize=10)
    return figure
