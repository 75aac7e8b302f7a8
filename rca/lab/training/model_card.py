"""The model card of a training run: intended use, data, scores by subset, limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rca.classify.decision_table import LARGE_LOSS
from rca.features import VERSION
from rca.lab.evaluation.judged_rows import HEALTHY, JudgedRow, grouped
from rca.lab.evaluation.summary import estimates
from rca.lab.evaluation.tables import TextTable, alarms_table, group_table
from rca.lab.training.causal_page import falsification_verdict
from rca.lab.training.held_out import SIMULATED, totals, with_all_signals
from rca.lab.training.split import SHARES

#: Groupings of a source's scores, if it has more than one group.
SUBSETS = ("source", "cause", "slowdown", "world_size", "telemetry")
PARTS = tuple(SHARES)
#: Windows that a cause needs to be listed among the weakest.
MIN_WINDOWS_OF_CAUSE = 5
#: With fewer test windows the card points to the intervals.
FEW_WINDOWS = 30
#: Number of weakest causes on the card.
WEAKEST = 5

OF_THE_METHOD = (
    "With fewer than 20 finished steps the answer abstains unless a fault is nearly certain. With phase "
    "timings of fewer than half of the ranks it does not call a job healthy.",
    "No timer shows a link that is slow for the whole window. Without network counters it is called healthy.",
    "If half of a job's ranks are slow from the first step to the last, it looks like two kinds of machine. "
    "The answer abstains.",
    "Events and the time since the last progress distinguish a crash from a hang. Node clocks that differ by "
    "seconds hide a short time.",
    "A job that ends without an event may be finished or dead. Without events or device metrics the answer "
    "says that both are possible.",
    "Without measured waiting, a fault of one rank may be attributed to its node.",
    "Costs are means over all steps of the window after the warm-up, not over the slow steps only.",
)


@dataclass(frozen=True)
class Card:
    """All that a card is written from.

    Attributes
    ----------
    name, version, sha256 : str
        Of the bundle.
    provenance : mapping
        The manifest's: command and library versions.
    facts : mapping
        As of `rca.lab.training.data_facts.data_facts`.
    rows : mapping of str to sequence of JudgedRow
        Of held-out windows, by source.
    causal_report : mapping
        As of the mechanisms that `rca.lab.training.mechanism_fit.fit_mechanisms` returns.
    """

    name: str
    version: str
    sha256: str
    provenance: Mapping[str, Any]
    facts: Mapping[str, Any]
    thresholds: Mapping[str, float]
    rows: Mapping[str, Sequence[JudgedRow]]
    causal_report: Mapping[str, Any]

    def to_markdown(self) -> str:
        """The card as Markdown; the same run gives the same text."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        environment = Environment(
            loader=PackageLoader("rca.lab.training", "templates"),
            # Markdown, not HTML; every cell is escaped for a table instead.
            autoescape=False,  # noqa: S701
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        return environment.get_template("model_card.md.j2").render(self._content())

    def _content(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "sha256": self.sha256,
            "command": self.provenance["command"],
            "continues": self.provenance.get("continues_sha256"),
            "libraries": self.provenance["versions"],
            "feature_version": VERSION,
            "parts": PARTS,
            "split": _split(),
            "sources": list(map(_cells, self._sources())),
            "real_note": self._real_note(),
            "thresholds": self.thresholds,
            "large_loss": f"{LARGE_LOSS:.0%}".removesuffix("%"),
            "more_healthy": f"{self.provenance['n_innocent_windows']:,}",
            "scores": [_scores(name, rows) for name, rows in self.rows.items()],
            "falsification": falsification_verdict(self.causal_report.get("graph")),
            "mechanisms": [_cells(row) for row in _mechanisms(self.causal_report)],
            "limits": limits(self.rows, self.facts["collections"]),
        }

    def _sources(self) -> Iterable[Sequence[str]]:
        simulated = self.facts["simulated"]
        windows = f"{simulated['windows']:,}, seed {simulated['seed']}"
        yield _source(SIMULATED, windows, simulated["parts"], self.facts["corpus_sha256"])
        for name, each in self.facts["collections"].items():
            yield _source(name, f"{sum(each['parts'].values()):,}", each["parts"], each["sha256"])

    def _real_note(self) -> str:
        learned = sum(len(each["learned"]) for each in self.facts["collections"].values())
        if not learned:
            return "No real window took part in a fit, a calibration or a threshold."
        return (
            f"{learned:,} real windows were learned from, each in many variants: shorter, with fewer nodes, "
            "with less telemetry."
        )


def _split() -> str:
    shares = [f"{name} ({share:.0%})" for name, share in SHARES.items()]
    return (
        f"A hash of the scenario or incident splits the windows into {', '.join(shares)}, unless a "
        "collection's manifest names the part. All windows of one scenario or incident are in one part."
    )


def _source(name: str, windows: str, parts: Mapping[str, int], digest: str) -> list[str]:
    return [name, windows, *(f"{parts[part]:,}" for part in PARTS), f"`{digest[:16]}`"]


def _scores(source: str, rows: Sequence[JudgedRow]) -> dict[str, Any]:
    whole = with_all_signals(rows)
    tables = [group_table(whole, by) for by in SUBSETS if len(grouped(whole, by)) > 1]
    tables += [group_table(rows, "signals"), alarms_table(whole)]
    title = "Simulated scenarios" if source == SIMULATED else f"Collection {source}"
    return {
        "title": _cell(title),
        "totals": [_cells(row) for row in _totals(rows)],
        "tables": [_escaped(table) for table in tables if table.rows],
    }


def _totals(rows: Sequence[JudgedRow]) -> Iterable[tuple[str, ...]]:
    for name, row in totals(rows).items():
        if row["n"]:
            yield name, f"{row['value']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}", f"{row['n']:,.0f}"


def _mechanisms(report: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    """Per node its R squared, and its arrows that hold, were refuted or have no effect."""
    for node, found in report.get("mechanisms", {}).items():
        arrows = [arrow for arrow in report.get("arrows", ()) if arrow["target"] == node]
        if not arrows:
            continue
        holding = [arrow["source"] for arrow in arrows if arrow["holds"]]
        refuted = [arrow["source"] for arrow in arrows if not arrow["holds"] and arrow["effect"] > 0]
        without = [arrow["source"] for arrow in arrows if not arrow["holds"] and not arrow["effect"] > 0]
        yield (
            node,
            f"{found['r_squared']:.2f}",
            *(", ".join(names) or "-" for names in (holding, refuted, without)),
        )


def _escaped(table: TextTable) -> TextTable:
    title = table.title[:1].upper() + table.title[1:]
    return TextTable(title, tuple(_cells(table.header)), tuple(tuple(_cells(row)) for row in table.rows))


def _cells(row: Iterable[str]) -> list[str]:
    return [_cell(text) for text in row]


def _cell(text: str) -> str:
    """Text that stays in one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def limits(
    rows: Mapping[str, Sequence[JudgedRow]], collections: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Sentences for the card, those about this run first.

    Parameters
    ----------
    rows : mapping of str to sequence of JudgedRow
        Of held-out windows, by source.
    collections : mapping
        As in `rca.lab.training.data_facts.data_facts`.
    """
    found = [sentence for name, held in rows.items() for sentence in _of_source(name, with_all_signals(held))]
    tested = [name for name in rows if name != SIMULATED]
    if not tested:
        found.insert(
            0,
            "No real window was tested. The scores are about new scenarios of the simulator, not about real "
            "jobs.",
        )
    found += [f"Collection {name} has no test windows." for name in collections if name not in tested]
    return [*found, *OF_THE_METHOD]


def _of_source(source: str, rows: Sequence[JudgedRow]) -> list[str]:
    found = []
    if len(rows) < FEW_WINDOWS:
        found.append(f"On {source}: only {len(rows)} test windows. Read the intervals, not the values.")
    weak = _weakest(rows)
    if weak:
        found.append(f"On {source}, the first cause on its ranks is right least often for {', '.join(weak)}.")
    alarms = estimates([row.judged for row in rows])["false_alarm_rate"]
    if alarms.n:
        found.append(f"On {source}, {alarms.value:.1%} of {alarms.n:,} healthy windows are called faulty.")
    else:
        found.append(f"On {source} there is no healthy test window, so the false-alarm rate is unknown.")
    return found


def _weakest(rows: Sequence[JudgedRow]) -> list[str]:
    scored = []
    for cause, members in grouped(rows, "cause").items():
        right = estimates([row.judged for row in members])["cause_ac@1"]
        if cause != HEALTHY and right.n >= MIN_WINDOWS_OF_CAUSE and right.value < 1:
            scored.append((right.value, cause, right.n))
    return [f"{cause} ({value:.2f} of {n})" for value, cause, n in sorted(scored)[:WEAKEST]]
