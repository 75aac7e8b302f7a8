"""Decisions that all ranks of a job apply at the same step, through the store that the job has already.

No collective is added. Rank 0 writes a decision before it joins the all-reduce of step `k`, valid from step
``k + 1``. No rank can finish that all-reduce before rank 0 has joined it. So each rank that looks into the
store after it finds the decision, and all of them apply it at the same step.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from rca.errors import InvalidInput
from rca.runtime.antdt.decision import Decision


class KeyValueStore(Protocol):
    """The methods that are used of `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> Any:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Read a value; waits for it."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0, and give its value."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""

    def delete_key(self, key: str) -> bool:
        """Delete a value."""


class Agreement:
    """The decisions of a job, as one rank has them.

    Parameters
    ----------
    store : KeyValueStore
        Shared by all ranks, such as the store of the process group.
    first : Decision
        Valid from step 0.
    prefix : str
        Begins all keys. A restarted job with the same store needs another one.
    """

    def __init__(self, store: KeyValueStore, first: Decision, prefix: str = "antdt") -> None:
        self._store, self._prefix = store, prefix
        self._decisions = [first]
        self._seen = 0
        self.stop_step: int | None = None

    def publish(self, decision: Decision) -> None:
        """Write a decision; for rank 0, before its all-reduce of the step before `decision.from_step`."""
        if decision.n_workers != self._decisions[0].n_workers:
            raise InvalidInput(f"the decision is for {decision.n_workers} workers")
        self._write({"decision": decision.to_json()})

    def stop(self, step: int) -> None:
        """Write that `step` is not done any more; for rank 0, before its all-reduce of the step before."""
        self._write({"stop": step})

    def read(self) -> None:
        """Read what was written; for each rank, after the all-reduce of a step."""
        written = self._store.add(f"{self._prefix}/written", 0)
        for number in range(self._seen + 1, written + 1):
            message = json.loads(self._store.get(f"{self._prefix}/{number}"))
            if "stop" in message:
                self.stop_step = int(message["stop"])
            else:
                self._decisions.append(Decision.from_json(message["decision"]))
        self._seen = written

    def at(self, step: int) -> Decision:
        """The decision that is valid at a step.

        A decision that was read early, because rank 0 is ahead, waits for its step.
        """
        valid = [each for each in self._decisions if each.from_step <= step]
        # Earlier steps do not come again.
        self._decisions = self._decisions[len(valid) - 1 :]
        return valid[-1]

    def is_over(self, step: int) -> bool:
        """Whether a step is not done any more."""
        return self.stop_step is not None and step >= self.stop_step

    def _write(self, message: dict[str, Any]) -> None:
        # Only rank 0 writes, so the number is free. The counter comes last: then the message is there.
        number = self._store.add(f"{self._prefix}/written", 0) + 1
        self._store.set(f"{self._prefix}/{number}", json.dumps(message))
        self._store.add(f"{self._prefix}/written", 1)


class Times:
    """Batch times of all ranks on their way to rank 0."""

    def __init__(self, store: KeyValueStore, n_workers: int, prefix: str = "antdt") -> None:
        self._store, self._prefix = store, prefix
        self._sent = 0
        self._next = [0] * n_workers

    def send(self, rank: int, batches: list[tuple[float, int, float]]) -> None:
        """Write seconds, samples and seconds waited for samples of batches of one rank."""
        self._store.set(f"{self._prefix}/times/{rank}/{self._sent}", json.dumps(batches))
        self._sent += 1

    def received(self) -> list[tuple[int, float, int, float]]:
        """Rank, and what it has sent, of all batches that have arrived; never waits."""
        found = []
        for rank, number in enumerate(self._next):
            key = f"{self._prefix}/times/{rank}/{number}"
            while self._store.check([key]):
                found += [(rank, float(s), int(n), float(w)) for s, n, w in json.loads(self._store.get(key))]
                self._store.delete_key(key)
                self._next[rank] += 1
                key = f"{self._prefix}/times/{rank}/{self._next[rank]}"
        return found
