"""The sum of a data set as a report: totals, tables, and what could not be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import pandas as pd

from rca.runbook.html import page_environment

#: Rows of a table, and refused files, on a page.
MAX_ON_PAGE = 200


@dataclass(frozen=True)
class ReportTable:
    """One table of a report.

    Attributes
    ----------
    rows : DataFrame
        Its columns are the names in JSON.
    columns : mapping of str to str
        What people read: a format of the row for each column. One with a comma is of numbers.
    """

    title: str
    rows: pd.DataFrame
    columns: Mapping[str, str]

    def cells(self, most: int) -> list[list[str]]:
        """Texts of the first rows, one per column."""
        rows: list[dict[str, Any]] = self.rows.head(most).to_dict("records")  # type: ignore[assignment]
        return [[text.format_map(row) for text in self.columns.values()] for row in rows]


@dataclass(frozen=True)
class HeatMap:
    """Slowdowns of a page as colours.

    Attributes
    ----------
    rows : list of (str, list of float or None)
        Name and cells of each row; None is unknown.
    """

    title: str
    rows: list[tuple[str, list[float | None]]]

    @staticmethod
    def shade(slowdown: float | None) -> float:
        """Opacity of a cell: none at a slowdown of 1, full from 2 on."""
        return 0.0 if slowdown is None else round(min(max(slowdown - 1.0, 0.0), 1.0), 2)


@dataclass(frozen=True)
class SweepReport:
    """The sum of a data set.

    Attributes
    ----------
    facts : mapping of str to object
        Totals, by their names in JSON.
    headline : list of str
        The totals for people, line by line.
    tables : mapping of str to ReportTable
        By their names in JSON.
    refused : DataFrame
        ``url`` and ``reason`` of what could not be used.
    heat_maps : sequence of HeatMap
        For the page only.
    """

    facts: Mapping[str, Any]
    headline: list[str]
    tables: Mapping[str, ReportTable]
    refused: pd.DataFrame
    heat_maps: Sequence[HeatMap] = ()

    @property
    def shown(self) -> list[ReportTable]:
        """Tables with rows."""
        return [each for each in self.tables.values() if len(each.rows)]

    def to_json(self) -> str:
        """Everything; unknown numbers and times are null."""
        tables = {name: each.rows.to_dict("records") for name, each in self.tables.items()}
        content = {**self.facts, **tables, "refused": self.refused.to_dict("records")}
        options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
        return orjson.dumps(content, default=_time, option=options).decode()

    def to_html(self) -> str:
        """A page that needs no script, font or file from elsewhere."""
        page = page_environment("rca.sweep").get_template("report.html.j2")
        return page.render(report=self, refused=self.refused.to_dict("records"), most=MAX_ON_PAGE)


def _time(time: datetime) -> str | None:
    return None if pd.isna(time) else time.isoformat()


def refusals(rows: pd.DataFrame) -> pd.DataFrame:
    """URL and reason of rows without a result."""
    return rows[["url", "error_message"]].rename(columns={"error_message": "reason"}).sort_values("url")
