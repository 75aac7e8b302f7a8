"""DoWhy's own microservice example: latencies of a shop's eleven services, with the call graph [1]_.

Its three files lie in DoWhy's source distribution (``docs/source/example_notebooks``): requests of a healthy
shop, one slow request, and a thousand slow ones. What was made slow is the caching service. The incidents of
one, ten and a thousand requests are made of the same ones: read each table for itself.

References
----------
.. [1] py-why/dowhy, "Finding the Root Cause of Elevated Latencies in a Microservice Architecture".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import networkx
import pandas as pd

from benchmarks.tabular.cases import Case

NORMAL, SINGLE, MANY = (
    f"rca_microservice_architecture_{name}.csv" for name in ("latencies", "anomaly", "anomaly_1000")
)
CAUSE, TARGET = "Caching Service", "Website"
#: Service -> services that it calls.
CALLS = {
    "Website": ("www",),
    "www": ("API", "Auth Service"),
    "API": ("Auth Service", "Customer DB", "Order Service", "Product Service"),
    "Auth Service": ("Customer DB",),
    "Order Service": ("Order DB",),
    "Product Service": ("Caching Service", "Customer DB", "Shipping Cost Service"),
    "Caching Service": ("Product DB",),
}
#: Incidents are so many slow requests in a row; of single requests, so many.
IN_A_ROW, SINGLES = 10, 100


def read_shop(folder: Path) -> Iterator[Case]:
    """Incidents of one, ten and a thousand slow requests; nothing if the folder does not hold the example."""
    for found in sorted(folder.rglob(NORMAL)):
        places = [found.parent / name for name in (NORMAL, SINGLE, MANY)]
        if not all(place.exists() for place in places):
            continue
        normal, single, many = map(pd.read_csv, places)
        graph = networkx.DiGraph([(called, by) for by, all_ in CALLS.items() for called in all_])
        yield _case("one slow request", normal, single, graph)
        for row in range(min(SINGLES, len(many))):
            yield _case("one slow request", normal, many.iloc[[row]], graph)
        for first in range(0, len(many), IN_A_ROW):
            yield _case("ten slow requests", normal, many.iloc[first : first + IN_A_ROW], graph)
        yield _case("a thousand slow requests", normal, many, graph)


def _case(family: str, normal: pd.DataFrame, anomalous: pd.DataFrame, graph: networkx.DiGraph) -> Case:
    services = {str(name): str(name) for name in normal.columns}
    return Case(family, normal, anomalous, frozenset({CAUSE}), services, graph, TARGET, overlaps=True)
