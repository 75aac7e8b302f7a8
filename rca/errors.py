"""Errors a caller can handle, each with a stable code.

::

    RcaError
    ├── InvalidInput          the caller's data or arguments cannot be used
    │   ├── InvalidWindow     a telemetry window breaks the format (names table, column, rows)
    │   ├── InvalidTrace      an operation trace cannot be replayed
    │   └── TooLarge          a body or file exceeds a stated limit
    ├── BundleError           a model bundle is missing, damaged or of an unknown format
    ├── SourceError           a telemetry source (file, exporter, URL) cannot be read
    └── MissingExtra          an optional dependency is not installed

``code`` is public: the REST problem type, the CLI's JSON error and log fields use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

#: Errors quote names and values of callers, which can have any length.
_SHOWN_CHARACTERS = 80
_MAX_MESSAGE_LENGTH = 2000
_Error = TypeVar("_Error", bound="RcaError")


def cut(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """The text, or its beginning if it is longer than `most` characters."""
    return text if len(text) <= most else text[:most] + "…"


def _shown(value: Any) -> Any:
    # A little longer than what the values were cut to before.
    return cut(value, 2 * _SHOWN_CHARACTERS) if isinstance(value, str) else value


class RcaError(Exception):
    """Base of every error this package raises on purpose."""

    code = "rca-error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        if len(message) > _MAX_MESSAGE_LENGTH:
            # What is wrong mostly stands after the name or the value.
            message = f"{cut(message, _MAX_MESSAGE_LENGTH // 2)}{message[-_MAX_MESSAGE_LENGTH // 2 :]}"
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else cut(hint, _MAX_MESSAGE_LENGTH)

    def __str__(self) -> str:
        return self.message

    def restated(self, message: str, **evidence: Any) -> Self:
        """Build the same error with another message, to be raised in its place.

        Parameters
        ----------
        **evidence
            Attributes that differ as well, such as ``path``.
        """
        return _rebuilt(type(self), (message,), self.__dict__ | {"message": message} | evidence)

    def details(self) -> dict[str, Any]:
        """Machine-readable evidence, merged into JSON error bodies."""
        return {} if self.hint is None else {"hint": self.hint}

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with the message alone and loses the evidence between processes.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[_Error], arguments: tuple[Any, ...], members: dict[str, Any]) -> _Error:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(members)
    return error


class InvalidInput(RcaError):
    """The caller's data or arguments cannot be used; retrying unchanged will fail again."""

    code = "invalid-input"


class InvalidWindow(InvalidInput):
    """A telemetry window breaks the format.

    Parameters
    ----------
    message : str
        What is wrong, as the end of a sentence that begins with the column: ``is negative``.
    table : str
        ``job``, ``steps``, ``metrics``, ``events`` or ``ops``.
    column : str, optional
        The wrong column or field.
    rows : sequence of mapping
        The first wrong rows, each with ``row`` (index in the table) and the values that matter.
    n_rows : int
        How many rows are wrong in total.
    expected : str
        What is accepted.

    Attributes
    ----------
    path : str or None
        The file or folder that was read, if the window came from one.
    """

    code = "invalid-window"

    def __init__(
        self,
        message: str,
        *,
        table: str,
        column: str | None = None,
        rows: Sequence[Mapping[str, Any]] = (),
        n_rows: int = 0,
        expected: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.table = table
        self.column = None if column is None else cut(column)
        self.rows = [{key: _shown(value) for key, value in row.items()} for row in rows]
        self.n_rows = max(n_rows, len(self.rows))
        self.expected = cut(expected, _MAX_MESSAGE_LENGTH)
        self.path: str | None = None

    def __str__(self) -> str:
        place = self.table if self.column is None else f"{self.table}.{self.column}"
        text = f"{place}: {self.message}." if self.path is None else f"{self.path}: {place}: {self.message}."
        if self.expected:
            text += f" Expected: {self.expected}."
        if self.rows:
            shown = "; ".join(
                ", ".join(f"{key}={value!r}" for key, value in row.items()) for row in self.rows
            )
            text += f" {self.n_rows:,} bad row{'s' if self.n_rows > 1 else ''}, the first: {shown}."
        if self.hint:
            text += f" {self.hint[0].upper()}{self.hint[1:]}."
        return text

    def details(self) -> dict[str, Any]:
        return (
            super().details()
            | {
                "table": self.table,
                "column": self.column,
                "rows": self.rows,
                "n_rows": self.n_rows,
                "expected": self.expected,
            }
            | ({} if self.path is None else {"path": self.path})
        )


class InvalidTrace(InvalidInput):
    """An operation trace or its metadata cannot be replayed."""

    code = "invalid-trace"


class TooLarge(InvalidInput):
    """A body or file exceeds a stated limit, before or after decompression."""

    code = "too-large"


class BundleError(RcaError):
    """A model bundle is missing, damaged or of an unknown format."""

    code = "bundle-error"


class SourceError(RcaError):
    """A telemetry source cannot be read."""

    code = "source-error"


class MissingExtra(RcaError):
    """An optional dependency is needed for this call and is not installed."""

    code = "missing-extra"
