"""Records a finished run: an MLflow run with metrics, pictures and card, and a registered challenger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from rca.diagnosis.bundle import mark_registered
from rca.features import VERSION
from rca.lab.evaluation.judged_rows import GROUPINGS, JudgedRow, grouped, to_table
from rca.lab.evaluation.pictures import reliability_of, write_calibration, write_confusion
from rca.lab.evaluation.summary import summarise
from rca.lab.evaluation.tables import confusion
from rca.lab.training.held_out import SIMULATED, totals, with_all_signals
from rca.lab.training.model_card import Card
from rca.lab.training.promotion import FACTS_FILE
from rca.lab.training.registration import register, withdraw_unfinished
from rca.lab.training.registry import CORPUS, FEATURES, ORDER, SHA256, Registry
from rca.lab.training.tracking import log_run, metric_name

CARD_FILE = "model_card.md"


def record(
    uri: str,
    bundle: Path,
    card: Card,
    parameters: Mapping[str, Any],
    *,
    registered: bool,
    tags: Mapping[str, str] | None = None,
    documents: Mapping[str, Any] | None = None,
) -> tuple[str, int | None]:
    """Log a run to MLflow and, if `registered`, register its bundle as the challenger and mark it as such.

    Parameters
    ----------
    uri : str
        MLflow tracking URI.
    card : Card
        All results of the run.
    parameters : mapping
        Options and chosen values of the run.
    tags : mapping of str to str, optional
        Further tags of the version. If they have `rca.lab.training.registry.ORDER`, a version with the same
        order is not registered again.
    documents : mapping of str to JSON-serialisable, optional
        Further artifacts.

    Returns
    -------
    run_id : str
    version : int or None
    """
    tags = tags or {}
    if ORDER in tags:
        known = withdraw_unfinished(Registry(uri), tags[ORDER])
        if known is not None:
            mark_registered(bundle, known.number, known.sha256)
            return known.run_id, known.number
    with TemporaryDirectory(prefix="rca-run-") as folder:
        write_artifacts(Path(folder), card)
        run_id = log_run(
            uri,
            name=run_name(card.facts),
            parameters=parameters,
            metrics=metrics(card),
            facts=card.facts,
            bundle=bundle,
            documents={
                "causal_report.json": card.causal_report,
                "provenance.json": card.provenance,
                FACTS_FILE: card.facts,
                **(documents or {}),
            },
            artifacts=Path(folder),
            tags={ORDER: tags[ORDER]} if ORDER in tags else {},
        )
    if not registered:
        return run_id, None
    facts = {SHA256: card.sha256, CORPUS: card.facts["corpus_sha256"], FEATURES: str(VERSION)}
    number = register(Registry(uri), run_id, bundle, {**tags, **facts}, card.provenance["command"])
    mark_registered(bundle, number, card.sha256)
    return run_id, number


def run_name(facts: Mapping[str, Any]) -> str:
    """What a run learned from, for lists of runs: windows, collections and seed.

    >>> facts = {"simulated": {"windows": 24000, "seed": 3}}
    >>> run_name({**facts, "collections": {"cluster-7": {"learned": ["a1", "b2"]}}})
    '24,000 simulated, 2 of cluster-7, seed 3'
    """
    simulated = facts["simulated"]
    learned = [f"{len(each['learned'])} of {name}" for name, each in facts["collections"].items()]
    return ", ".join([f"{simulated['windows']:,} simulated", *learned, f"seed {simulated['seed']}"])


def metrics(card: Card) -> dict[str, float]:
    """Scores with both ends of their intervals; unknown values are left out."""
    found = {
        f"{_prefix(source)}_{metric_name(score)}_{key}": float(value)
        for source, rows in card.rows.items()
        for score, row in totals(rows).items()
        for key, value in row.items()
        if value == value
    }
    return found | {
        f"causal_r_squared_{node}": float(each["r_squared"])
        for node, each in card.causal_report.get("mechanisms", {}).items()
    }


def _prefix(source: str) -> str:
    return "test" if source == SIMULATED else f"real_{metric_name(source)}"


def write_artifacts(folder: Path, card: Card) -> None:
    """Write the card and, per source, judged rows, scores by subset, confusion and calibration pictures."""
    (folder / CARD_FILE).write_text(card.to_markdown(), encoding="utf-8")
    for source, rows in card.rows.items():
        place = folder / "evaluation" / metric_name(source)
        place.mkdir(parents=True)
        _write_source(place, rows)
    curves = {
        source: reliability_of([row.judged for row in with_all_signals(rows)])
        for source, rows in card.rows.items()
    }
    write_calibration(curves, folder / "evaluation" / "calibration.png")


def _write_source(place: Path, rows: Sequence[JudgedRow]) -> None:
    import pyarrow.parquet as pq

    whole = with_all_signals(rows)
    pq.write_table(to_table(rows), place / "judged.parquet")
    scores = {
        "scores": totals(rows),
        "groups": {
            name: {
                group: summarise([row.judged for row in members])
                for group, members in grouped(rows if name == "signals" else whole, name).items()
            }
            for name in GROUPINGS
        },
    }
    # orjson writes NaN, which is what an unknown score is, as null.
    (place / "scores.json").write_bytes(orjson.dumps(scores, option=orjson.OPT_INDENT_2) + b"\n")
    write_confusion(confusion(whole), place / "confusion.png")
