"""Heads with more rows than one machine should hold: LightGBM's trees grow on the workers of a Dask cluster.

Each worker keeps a part of the rows and bins them; workers add up histograms. Two things differ from a head
that is fitted here. There is no early stopping, so a sample of groups finds the number of rounds. The trees
depend on the workers and on the order in which they connect: each finds the bins of some columns in its own
rows, and sums are rounded in another order. So a bundle with such a head is not the same byte for byte.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.errors import InvalidInput, SourceError
from rca.workers import Workers

if TYPE_CHECKING:
    from distributed import Client

#: A head with more bytes of training rows is fitted on a cluster, if there is one.
LARGE_BYTES = 16 << 30
#: Training rows of the sample that finds the number of rounds.
SAMPLE_ROWS = 1_000_000
#: Rows that are sent at once; a worker holds several parts.
PART_ROWS = 262_144
_NETWORK = ("[machines:", "[local_listen_port:", "[machine_list_filename:")


@dataclass(frozen=True)
class Distribution:
    """How a head was fitted on a cluster, for the record.

    Attributes
    ----------
    rows, sample_rows : int
        Rows that were learned from, and those that found the number of rounds.
    """

    workers: int
    rows: int
    sample_rows: int
    rounds: int

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


def is_distributed(n_bytes: int, workers: Workers) -> bool:
    """Whether a head with so many bytes of training rows is fitted on the cluster."""
    return workers.scheduler is not None and n_bytes > LARGE_BYTES


def sample_of(group: np.ndarray[Any, Any], n_rows: int, seed: int) -> BoolArray:
    """Rows of whole groups, about `n_rows` of them; all if there are fewer.

    Parameters
    ----------
    group : ndarray of shape (n,), str
    """
    names, inverse, counts = np.unique(group, return_inverse=True, return_counts=True)
    drawn = np.random.default_rng(seed).permutation(names.size)
    kept = drawn[np.cumsum(counts[drawn]) <= max(n_rows, int(counts.max()))]
    result: BoolArray = np.isin(inverse, kept)
    return result


def grow(
    parameters: Mapping[str, Any],
    rounds: int,
    rows: FloatArray,
    codes: IntArray,
    weight: FloatArray,
    workers: Workers,
) -> tuple[str, int]:
    """Trees of all rows as LightGBM's text, and the number of workers that grew them.

    Parameters
    ----------
    parameters : mapping
        Of LightGBM; ``num_threads`` is that of the workers.
    rows : ndarray of shape (n_rows, n_features)
    codes : ndarray of shape (n_rows,), int
    weight : ndarray of shape (n_rows,)
    workers : Workers
        With a scheduler. Its workers have to reach each other on any port.

    Raises
    ------
    SourceError
        If a worker is lost: LightGBM cannot go on without it.
    """
    import lightgbm

    client = workers.client()
    addresses = sorted(client.nthreads())
    settings = {name: value for name, value in parameters.items() if name != "num_threads"}
    # Regression, because a class without rows must keep its place; the objective is that of `parameters`.
    model = lightgbm.DaskLGBMRegressor(client=client, n_estimators=rounds, tree_learner="data", **settings)
    # Its lines about ports are for a log, not for standard output.
    log = logging.getLogger("lightgbm")
    log.setLevel(logging.ERROR)
    lightgbm.register_logger(log)
    try:
        with client.as_current():
            model.fit(
                _spread(client, addresses, rows),
                _spread(client, addresses, codes),
                sample_weight=_spread(client, addresses, weight),
            )
    except (OSError, RuntimeError, lightgbm.basic.LightGBMError) as error:
        raise SourceError(
            f"the trees cannot be grown on the cluster: {error}",
            hint="all its workers have to stay, and to reach each other on any port",
        ) from error
    lines = model.booster_.model_to_string().split("\n")
    # A bundle does not name the machines that made it.
    return "\n".join(line for line in lines if not line.startswith(_NETWORK)), len(addresses)


def refuse_earlier(name: str) -> None:
    """Refuse to add trees to those of an earlier bundle: LightGBM cannot do that on a cluster.

    Raises
    ------
    InvalidInput
    """
    raise InvalidInput(
        f"head {name} has more than {LARGE_BYTES >> 30} GiB of rows, and trees of an earlier bundle cannot "
        "be continued on a cluster",
        hint="leave out --continue-from, or use fewer windows",
    )


def _spread(client: Client, addresses: list[str], values: Any) -> Any:
    """A Dask array whose parts are on the workers, part by part; always on the same ones."""
    import dask.array

    parts = []
    # LightGBM refuses a worker without rows.
    size = max(1, min(PART_ROWS, -(-len(values) // len(addresses))))
    for number, begin in enumerate(range(0, len(values), size)):
        part = np.ascontiguousarray(values[begin : begin + size])
        held = client.scatter(part, workers=[addresses[number % len(addresses)]], hash=False)
        parts.append(dask.array.from_delayed(held, part.shape, part.dtype))
    return dask.array.concatenate(parts)
