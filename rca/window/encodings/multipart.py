"""Split a multipart body into named parts without copying their contents.

References
----------
RFC 2046 section 5.1 (multipart syntax), RFC 7578 (names in ``Content-Disposition``).
"""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser

from rca.errors import InvalidWindow, cut

EXPECTED = "multipart/form-data with parts job, steps and any of metrics, events, ops"
#: Limit on a part's header and on a content type, far above any real one. The time to parse them grows with
#: the square of their length.
MAX_HEADER = 2 * 1024
MAX_BOUNDARY = 70
#: Digits of the length of the largest file. Python refuses to read numbers of thousands of digits.
_MAX_DIGITS = 18


def boundary_of(body: bytes, content_type: str | None) -> bytes:
    """The boundary that the content type names; without one, that of the body's first line."""
    if content_type is None:
        first = body[: MAX_BOUNDARY + 4].partition(b"\r\n")[0]
        boundary = first[2:] if first.startswith(b"--") else b""
    elif len(content_type) > MAX_HEADER:
        raise _broken(f"has a content type of {len(content_type):,} characters")
    else:
        message = Message()
        message["content-type"] = content_type
        if message.get_content_maintype() != "multipart":
            raise _broken(f"has the content type {cut(content_type)!r}, not a multipart type")
        named = message.get_param("boundary")
        # Of a text in another character set (RFC 2231) the parser gives its parts; such codecs may fail.
        boundary = named.encode("latin-1", "replace") if isinstance(named, str) else b""
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        raise _broken("names no boundary")
    return boundary


def split_parts(body: bytes, boundary: bytes) -> Iterator[tuple[str, memoryview]]:
    """Yield each part's name and content.

    Raises
    ------
    InvalidWindow
        If the body ends early, or a part has no name.
    """
    delimiter = b"\r\n--" + boundary
    view = memoryview(body)
    at = _first_delimiter(body, delimiter)
    while not _is_last(body, at):
        head, start = _header(body, at)
        end = _content_end(body, start, head, delimiter)
        yield _name(head), view[start:end]
        at = end + len(delimiter)


def _first_delimiter(body: bytes, delimiter: bytes) -> int:
    """Position after the first boundary, which may follow a preamble."""
    if body.startswith(delimiter[2:]):
        return len(delimiter) - 2
    found = body.find(delimiter)
    if found < 0:
        raise _broken("does not contain its boundary")
    return found + len(delimiter)


def _is_last(body: bytes, at: int) -> bool:
    return body[at : at + 2] == b"--"


def _header(body: bytes, at: int) -> tuple[Message, int]:
    line_end = body.find(b"\r\n", at, at + MAX_HEADER)
    # After an empty header the blank line follows the boundary's own line end.
    end = body.find(b"\r\n\r\n", line_end, at + MAX_HEADER) if line_end >= 0 else -1
    if end < 0:
        raise _broken(f"ends inside a part's header (byte {at})")
    text = body[line_end + 2 : end + 2].decode("utf-8", "replace")
    return HeaderParser().parsestr(text), end + 4


def _content_end(body: bytes, start: int, head: Message, delimiter: bytes) -> int:
    length = head.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) <= _MAX_DIGITS:
        end = start + int(length)
        if body.startswith(delimiter, end):
            return end
    end = body.find(delimiter, start)
    if end < 0:
        raise _broken(f"ends inside the part {_name(head)!r}")
    return end


def _name(head: Message) -> str:
    name = head.get_param("name", header="content-disposition")
    if not isinstance(name, str) or not name:
        raise _broken("has a part without a name in its Content-Disposition")
    return name


def _broken(message: str) -> InvalidWindow:
    return InvalidWindow(message, table="window", expected=EXPECTED)
