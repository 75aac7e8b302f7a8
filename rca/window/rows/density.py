"""Refuse windows that hardly fill their arrays: what a window costs follows from what it contains.

Every rank has features and a cell in every step, whether it reports or not. Silent ranks are evidence of a
stop, and missing steps are normal. But a few rows must not demand gigabytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from rca.errors import InvalidWindow

#: Ranks of a job in which none reports, and further ones for each rank that reports.
FREE_RANKS, RANKS_PER_REPORTING = 16_384, 32
#: Cells (ranks x steps) of any window, of one with hardly any row, and further ones for each row.
MAX_CELLS = 200_000_000
FREE_CELLS = 500_000
CELLS_PER_ROW = 32


def refuse_silent_world(tables: Mapping[str, pa.Table], world_size: int) -> None:
    """Refuse a world that is far larger than the number of ranks that any table names.

    Raises
    ------
    InvalidWindow
    """
    if world_size <= FREE_RANKS:
        return
    reports = np.zeros(world_size, dtype=bool)
    for table in tables.values():
        reports[table.column("rank").drop_null().to_numpy()] = True
    n_reporting = int(np.count_nonzero(reports))
    limit = FREE_RANKS + RANKS_PER_REPORTING * n_reporting
    if world_size > limit:
        raise InvalidWindow(
            f"is {world_size:,}, and only {n_reporting:,} ranks report anything",
            table="job",
            column="world_size",
            expected=f"at most {limit:,} ranks for {n_reporting:,} that report",
            hint="correct world_size, or send the rows of the other ranks",
        )


def refuse_empty_cells(n_rows: int, world_size: int, n_steps: int) -> None:
    """Refuse steps that so few ranks report that most cells are empty.

    Raises
    ------
    InvalidWindow
    """
    cells = world_size * n_steps
    limit = min(MAX_CELLS, FREE_CELLS + CELLS_PER_ROW * n_rows)
    if cells > limit:
        raise InvalidWindow(
            f"has {n_steps:,} distinct steps: {cells:,} cells for {world_size:,} ranks in {n_rows:,} rows",
            table="steps",
            column="step",
            expected=f"at most {limit:,} cells (ranks x steps)",
            hint="send shorter windows, or correct world_size and the step numbers",
        )
