"""A decision of the controller: batch sizes of all workers from a step on, and their weight in the update.

Each worker computes the mean gradient of its own samples. Data parallelism averages these means with equal
weights. That is wrong when the numbers of samples differ: each sample of a small batch would count more. With
the weight ``n_workers * samples[i] / total`` the average is the mean over all samples of the step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rca.arrays import IntArray
from rca.errors import InvalidInput


@dataclass(frozen=True)
class Decision:
    """Batch sizes of all workers, valid from one step on.

    Attributes
    ----------
    version : int
        Counts up from 0, the sizes at the start of the job.
    from_step : int
        First step with these sizes.
    sizes : tuple of int
        Samples of one pass of each worker.
    steps : tuple of int
        Passes of each worker in a step; 1 means no accumulation.
    """

    version: int
    from_step: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.steps) or not self.sizes:
            raise InvalidInput(f"a decision has {len(self.sizes)} sizes and {len(self.steps)} steps")
        if min(self.sizes) < 0 or min(self.steps) < 1 or not sum(self.samples):
            raise InvalidInput("a decision has a negative size, a worker without a step, or no sample")

    @classmethod
    def of(cls, sizes: IntArray | Sequence[int], steps: IntArray | Sequence[int] | None = None) -> Decision:
        """Make the first decision of a job.

        Parameters
        ----------
        sizes, steps : array-like of shape (n_workers,), int
            Samples of a pass; passes of a step, 1 if not given.
        """
        whole = tuple(int(size) for size in sizes)
        return cls(
            0, 0, whole, tuple(int(each) for each in steps) if steps is not None else (1,) * len(whole)
        )

    @property
    def n_workers(self) -> int:
        """Number of workers."""
        return len(self.sizes)

    @property
    def samples(self) -> tuple[int, ...]:
        """Samples of a step of each worker."""
        return tuple(size * steps for size, steps in zip(self.sizes, self.steps, strict=True))

    @property
    def total(self) -> int:
        """Samples of a step, all workers together."""
        return sum(self.samples)

    def to_json(self) -> str:
        """The decision as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Decision:
        """Read a decision.

        Raises
        ------
        InvalidInput
            If the text is not a decision.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            numbers = {name: tuple(map(int, fields[name])) for name in ("sizes", "steps")}
            return cls(int(fields["version"]), int(fields["from_step"]), **numbers)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"this is not a decision: {error}") from None


def loss_scale(samples: int, n_workers: int, total: int) -> float:
    """Factor of the mean loss of one pass, so that each sample of the step counts ``1 / total``.

    Parameters
    ----------
    samples : int
        Samples of this pass.
    n_workers : int
        Data parallelism divides by it.
    total : int
        Samples of a full step. At the end of the data a step has fewer, and its update is smaller.
    """
    return n_workers * samples / total
