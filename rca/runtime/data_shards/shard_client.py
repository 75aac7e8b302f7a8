"""Shards of a data set that a service hands out."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from rca.deadline import Deadline
from rca.errors import InvalidInput, RcaError, SourceError
from rca.runtime.data_shards.leases import (
    Checkpoint,
    EpochProgress,
    Lease,
    LeaseProgress,
    LeaseState,
    Offer,
    ShardReceipt,
    ShardReport,
)
from rca.runtime.data_shards.shard_plan import Shard, ShardPlan
from rca.timed_http import Answer, Exchange, whole

_RETRIED = frozenset({429, 502, 503, 504})
_MAX_WAIT_SECONDS = 10.0
#: Reports of one request; the service takes a thousand.
_AT_ONCE = 500
#: Largest answer, bytes.
_MAX_BYTES = 16 << 20


class ShardClient:
    """The shards of one data set on a service; a `ShardService`.

    Parameters
    ----------
    base_url : str
        For example ``http://127.0.0.1:8000``.
    name : str
        Name of the data set.
    plan : ShardPlan, optional
        The data set is created if it does not exist. Without a plan it has to exist.
    api_key : str, optional
        ``RCA_API_KEY`` of the environment if not given.
    timeout_seconds : float
        For each request.
    retries : int
        Further tries after a failed connection, and after answers 429, 502, 503 and 504. All requests may be
        repeated.

    Raises
    ------
    InvalidInput
        If the service refuses a request.
    SourceError
        If the service cannot be reached.
    """

    def __init__(
        self,
        base_url: str,
        name: str,
        plan: ShardPlan | None = None,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 10.0,
        retries: int = 5,
    ) -> None:
        if urlsplit(base_url).scheme not in ("http", "https"):
            raise InvalidInput(f"{base_url!r} is not an http or https address")
        self._sets = f"{base_url.rstrip('/')}/v1/data-shards"
        self._place = f"{self._sets}/{quote(name, safe='')}"
        self._timeout, self._retries = timeout_seconds, retries
        self._tls = ssl.create_default_context() if base_url.startswith("https") else None
        key = api_key or os.environ.get("RCA_API_KEY")
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        if plan is None:
            found = self._call("GET", self._place)
        else:
            fields = ("n_samples", "shard_size", "n_epochs", "seed", "shuffle", "lease_seconds")
            found = self._call(
                "POST", self._sets, {"name": name} | {each: getattr(plan, each) for each in fields}
            )
        self._plan = ShardPlan(
            found["n_samples"],
            found["shard_size"],
            found["n_epochs"],
            found["seed"],
            found["shuffle"],
            found["lease_seconds"],
        )

    @property
    def plan(self) -> ShardPlan:
        """How the data set is cut."""
        return self._plan

    def lease(self, worker: str, lease_id: str | None = None, samples: int | None = None) -> Offer:
        """Lease the first shard that is to do; with a `lease_id`, a repeated request changes nothing."""
        wanted = {"worker": worker, "lease_id": lease_id, "samples": samples}
        answer = self._call("POST", f"{self._place}/leases", wanted)
        return Offer(_lease(answer["lease"]), answer["finished"], answer["wait_seconds"])

    def report(self, reports: Sequence[ShardReport]) -> list[ShardReceipt]:
        """Count trained samples, and renew the leases."""
        receipts = []
        for first in range(0, len(reports), _AT_ONCE):
            sent = [
                {"lease_id": each.lease_id, "done": each.done} for each in reports[first : first + _AT_ONCE]
            ]
            answer = self._call("POST", f"{self._place}/reports", {"reports": sent})
            receipts += [
                ShardReceipt(each["lease_id"], each["accepted"], each["done"], LeaseState(each["state"]))
                for each in answer["receipts"]
            ]
        return receipts

    def release(self, worker: str) -> int:
        """Take all shards of a worker back; gives their number."""
        return int(self._call("POST", f"{self._place}/releases", {"worker": worker})["returned"])

    def progress(self) -> LeaseProgress:
        """Count shards and samples."""
        found = self._call("GET", self._place)
        epochs = tuple(EpochProgress(**each) for each in found["epochs"])
        return LeaseProgress(
            epochs, found["n_open"], found["n_done"], found["samples"], finished=found["finished"]
        )

    def checkpoint(self) -> Checkpoint:
        """The state to keep beside a checkpoint of the model."""
        found = self._call("GET", f"{self._place}/checkpoint")
        return Checkpoint(
            found["next_position"],
            tuple((each["position"], each["done"], each["stop"]) for each in found["open"]),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint."""
        shards = [
            {"position": position, "done": done, "stop": stop} for position, done, stop in checkpoint.open
        ]
        self._call(
            "POST", f"{self._place}/restore", {"next_position": checkpoint.next_position, "open": shards}
        )

    def _call(self, method: str, place: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body).encode()
        for attempt in range(self._retries + 1):
            wait = 0.25 * 2**attempt
            try:
                answer = Exchange(
                    method,
                    place,
                    whole(_MAX_BYTES),
                    Deadline.after(self._timeout).left,
                    headers=self._headers,
                    body=content,
                    tls=self._tls,
                    use_proxies=True,
                ).wait()
                if answer.status < 300:
                    found: dict[str, Any] = orjson.loads(answer.body)
                    return found
            except (OSError, ValueError) as error:
                if attempt == self._retries:
                    raise SourceError(f"the service at {place} cannot be used: {error}") from error
            else:
                if answer.status not in _RETRIED or attempt == self._retries:
                    raise _refusal(answer)
                asked = answer.headers.get("Retry-After", "")
                wait = float(asked) if asked.isdecimal() else wait
            time.sleep(min(wait, _MAX_WAIT_SECONDS))
        raise AssertionError("the last attempt returns or raises")


def _lease(found: dict[str, Any] | None) -> Lease | None:
    if found is None:
        return None
    shard = Shard(found["position"], found["epoch"], found["first"], found["size"])
    numbers = (found[name] for name in ("start", "stop", "done", "expires_at"))
    return Lease(found["id"], found["worker"], shard, *numbers)


def _refusal(answer: Answer) -> RcaError:
    try:
        problem = orjson.loads(answer.body)
        detail, hint = str(problem["detail"]), problem.get("hint")
    except (ValueError, KeyError, TypeError):
        return SourceError(f"HTTP {answer.status} without a problem document; is this the right address?")
    return (
        InvalidInput(detail, hint=hint)
        if answer.status in (400, 409, 422)
        else SourceError(detail, hint=hint)
    )
