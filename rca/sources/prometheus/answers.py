"""Read answers of the Prometheus query API within limits, before anything of them is parsed.

A parser makes objects of 60 to 260 bytes from two or three characters, and gzip makes a thousand bytes of
one. 117 kB of compressed ``[1,"1"]`` took 3.9 GiB. So the body is unpacked piece by piece, and the characters
that begin and separate values are counted in each piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from rca.errors import SourceError, cut
from rca.window.encodings.json_text import uncollected

if TYPE_CHECKING:
    import httpx2

#: Largest answer, bytes after decompression.
MAX_ANSWER_BYTES = 48 << 20
#: Most memory for the objects of an answer, bytes by the estimate below: a million samples, or the labels of
#: 80,000 series. A query that has more is split by time.
MAX_ANSWER_MEMORY = 256 << 20
#: So much of an error is read, bytes.
MAX_ERROR_BYTES = 1 << 16
#: Memory that each of these characters may stand for, with what the parser needs for a while, bytes. Measured
#: with samples, labels of series, texts, numbers, and empty lists and objects.
_MEMORY = {b"{": 100, b"[": 100, b",": 60, b":": 70, b'"': 22}
#: Words of Prometheus, Thanos, Mimir and VictoriaMetrics for a question that selects too much.
_TOO_MUCH = (
    "too many samples",
    "maximum number of",
    "maxsamples",
    "max-samples",
    "limit exceeded",
    "exceeds",
)


class TooMuchError(SourceError):
    """The server refuses the question because it selects too much, or the answer is too large."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Prometheus cannot answer so much at once: {reason}",
            hint="shorten --since, or select less with --match",
        )
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason,)


@dataclass(frozen=True)
class PrometheusAnswer:
    """One answer of a server.

    Attributes
    ----------
    headers : mapping of str to str
        Names have no case.
    body : bytearray
        Unpacked; of an error the first `MAX_ERROR_BYTES`.
    """

    status: int
    headers: Mapping[str, str]
    body: bytearray

    @classmethod
    def read(cls, response: httpx2.Response) -> PrometheusAnswer:
        """Read the body of an answer.

        Raises
        ------
        TooMuchError
            If it has more than `MAX_ANSWER_BYTES`, or its objects would take more than `MAX_ANSWER_MEMORY`.
        """
        # At most 1 MiB each, however well they are packed.
        pieces = response.iter_bytes()
        body = _limited(pieces) if response.status_code < 300 else _beginning(pieces)
        return cls(response.status_code, response.headers, body)

    @property
    def selects_too_much(self) -> bool:
        """Whether the server refuses because the question selects too much."""
        text = bytes(self.body[:2000]).lower()
        if self.status in (503, 504) and b'"timeout"' in text:
            # The query took too long for the server: half of it may not.
            return True
        # 429 limits the rate of requests: smaller ones would be more.
        return self.status in (400, 413, 422, 500, 503) and any(each.encode() in text for each in _TOO_MUCH)

    @property
    def text(self) -> str:
        """The first characters of the body."""
        return cut(self.body[:300].decode("utf-8", "replace"), 300)

    @property
    def asked_pause(self) -> float:
        """Seconds that the server asks to wait; 0 if it does not."""
        asked = self.headers.get("Retry-After", "")
        return float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else 0.0

    def parsed(self) -> Any:
        """The JSON of the body.

        Raises
        ------
        orjson.JSONDecodeError
        """
        with uncollected():
            return orjson.loads(self.body)


def _limited(pieces: Iterator[bytes]) -> bytearray:
    body = bytearray()
    memory = 0
    for piece in pieces:
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise TooMuchError(f"the answer has more than {MAX_ANSWER_BYTES:,} bytes")
        text = np.frombuffer(piece, dtype=np.uint8)
        memory += sum(
            size * int(np.count_nonzero(text == ord(character))) for character, size in _MEMORY.items()
        )
        if memory > MAX_ANSWER_MEMORY:
            raise TooMuchError(
                f"the samples and labels of the answer need more than {MAX_ANSWER_MEMORY >> 20} MiB of memory"
            )
    return body


def _beginning(pieces: Iterator[bytes]) -> bytearray:
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > MAX_ERROR_BYTES:
            break
    return body[:MAX_ERROR_BYTES]
