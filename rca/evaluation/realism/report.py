"""A comparison as files: ``realism.md`` with pictures, and ``realism.json`` with every figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rca.errors import SourceError
from rca.evaluation.intervals import Estimate
from rca.evaluation.realism.effects import Effect
from rca.evaluation.realism.pictures import pictures
from rca.evaluation.realism.reading import (
    discriminator_table,
    effects_table,
    features_table,
    importance_table,
    layers_table,
    levels_table,
    missing_table,
    severity_table,
    summary_table,
    trace_table,
    verdict,
)
from rca.evaluation.realism.run import Realism
from rca.evaluation.realism.traces import CAUSES, TraceComparison
from rca.telemetry.files import replace_file

FORMAT = 1


def write_report(found: Realism, folder: Path, title: str) -> None:
    """Write ``realism.md``, ``realism.json`` and the pictures, each whole or not at all.

    Raises
    ------
    MissingExtra
        Without matplotlib.
    SourceError
        If the folder cannot be written.
    """
    import orjson

    drawn = pictures(found)
    content = orjson.dumps(document(found), option=orjson.OPT_INDENT_2) + b"\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in drawn.items():
            replace_file(folder / name, picture)
        replace_file(folder / "realism.json", content)
        # Last, because it refers to the others.
        replace_file(folder / "realism.md", markdown(found, title).encode())
    except OSError as error:
        raise SourceError(f"cannot write into {folder}: {error.strerror or error}") from error


def document(found: Realism) -> dict[str, Any]:
    """Every figure as plain data for JSON; unknown numbers are null."""
    from rca.whatif.result import finite

    held = found.discriminated
    content = {
        "format": FORMAT,
        "seed": found.seed,
        "n_real": len(found.real),
        "n_simulated": len(found.simulated),
        "left_out": found.left_out,
        "effects": [_effect(effect) for effect in found.effects],
        "slowdown_at_severity": [_effect(effect) for effect in found.at_severity],
        "features": [
            {"cause": each.cause, "feature": each.feature, **each.distance._asdict(), "q": each.q}
            for each in found.features
        ],
        "discriminator": {
            "auc": held.auc.as_row(),
            "auc_exact": held.exact.as_row(),
            "by_cause": {cause: auc.as_row() for cause, auc in held.by_cause.items()},
            "layers": [{"auc": layer.auc.as_row(), "importance": layer.importance} for layer in held.layers],
        },
        "traces": [_trace(trace) for trace in found.traces],
    }
    plain: dict[str, Any] = finite(content)
    return plain


def markdown(found: Realism, title: str) -> str:
    """The report, largest differences first."""
    auc = found.discriminated.auc
    opening = (
        f"# Realism of the simulator, measured on {title}\n\n"
        f"{len(found.real)} real captures; {len(found.simulated)} simulated twins, each with the job, "
        "victims, steps and slowdown of a capture, all else as the simulator draws it. Brackets are "
        "95 % bootstrap intervals over windows. A quantile says where the real median lies in the simulated "
        "distribution; doublings are log2 of real over simulated. Listed are differences whose intervals are "
        "disjoint and whose real median is outside the simulated 5 to 95 %."
    )
    if found.left_out:
        opening += (
            f" {len(found.left_out)} captures are left out: something was done that had no visible effect."
        )
    parts = [
        opening,
        summary_table(found).to_markdown(),
        _about_discriminator(auc),
        discriminator_table(found).to_markdown(),
        importance_table(found).to_markdown(),
        layers_table(found).to_markdown(),
        _picture("what tells real from simulated", "discriminator.png"),
        effects_table(found.effects, 40).to_markdown(),
        _picture("effect sizes, real over simulated", "effects.png"),
        severity_table(found.at_severity).to_markdown(),
        _picture("slowdown at the labelled severity", "severity.png"),
        levels_table(found.effects).to_markdown(),
        features_table(found.features, "largest differences of features", 40).to_markdown(),
        missing_table(found.features).to_markdown(),
        _picture("features, real against simulated", "features.png"),
    ]
    for trace in found.traces:
        parts += [
            trace_table(trace).to_markdown(),
            _picture(f"trace {trace.name}", f"trace-{trace.name}.png"),
        ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _about_discriminator(auc: Estimate) -> str:
    return (
        "A small gradient-boosted model, shown features rounded to what an engineer would remark, "
        f"{verdict(auc.value)}. An AUC of 0.5 would mean that nothing it sees "
        "tells a simulated window from a real one. Near 1 it does **not** mean that a classifier trained on "
        "simulation fails on reality: one constant that is always different is enough. It means that some "
        "feature gives the origin away, so a classifier may have learned thresholds that reality does not "
        "have; the features listed below are where to look first."
    )


def _picture(title: str, name: str) -> str:
    return f"![{title}]({name})"


def _effect(effect: Effect) -> dict[str, Any]:
    sides = {"real": effect.real.as_row(), "simulated": effect.simulated.as_row(), "apart": effect.apart}
    return {**asdict(effect), **sides}


def _trace(trace: TraceComparison) -> Mapping[str, Any]:
    return {
        "name": trace.name,
        "figures": {
            name: {
                "real": trace.value(trace.real, name),
                **{
                    cause: {
                        "quantile": trace.quantile(cause, name),
                        "simulated": trace.sample(cause, name).tolist(),
                    }
                    for cause in CAUSES
                },
            }
            for name in trace.names
        },
    }
