"""Jobs with a fabric that is congested in all steps or in none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from rca.window import Window

HOUR = 3600.0
RANKS, PER_NODE, STEPS = 16, 8, 60
_SENT, _WAITED = "np_cnp_sent", "node_infiniband_port_transmit_wait_total"


def fabric_window(
    make_window: Callable[..., Window], transfer: float, *, congested: bool, **changes: Any
) -> Window:
    """A job of which every step, and every port, is alike: congested all along, or not at all."""
    plain = make_window(RANKS, STEPS, transfer=transfer, ranks_per_node=PER_NODE, **changes)
    seconds = plain.job.end - plain.job.start
    rates = {_SENT: 2e4, _WAITED: 3e7} if congested else {_SENT: 20.0, _WAITED: 1e4}
    times = np.linspace(plain.job.start, plain.job.end - seconds / STEPS, STEPS)
    tables = [
        pa.table(
            {
                "time": times,
                "node": pa.array([node] * STEPS),
                "rank": pa.nulls(STEPS, pa.int32()),
                "device": pa.nulls(STEPS, pa.string()),
                "name": pa.array([name] * STEPS),
                "value": 1e6 + rate * (times - plain.job.start),
            }
        )
        for node in plain.job.topology.node_names
        for name, rate in rates.items()
    ]
    return Window.from_tables(plain.job, plain.steps, pa.concat_tables(tables))
