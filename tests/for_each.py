"""One test for many cases of the same fact."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def for_each(
    names: str | Sequence[str],
    values: Iterable[Any],
    ids: Iterable[Any] | Callable[[Any], Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run one test with all values, each as a subtest; the report has all that fail.

    Takes what ``pytest.mark.parametrize`` takes. That makes a test of every value, for different behaviour.
    All values share the fixtures, but each has a `tmp_path` and a `monkeypatch` of its own.
    """
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    added = _labelled(split, list(values), ids)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        # Several decorators make a product.
        inner, before = getattr(test, "each", (test, [("", {})]))
        cases = [(f"{first} {label}".strip(), a | b) for first, a in added for label, b in before]
        parameters = inspect.signature(inner).parameters
        assert cases[0][1].keys() <= parameters.keys(), f"{inner.__name__} does not take all of {cases[0][1]}"

        @functools.wraps(inner)
        def run(subtests: pytest.Subtests, **fixtures: Any) -> None:
            __tracebackhide__ = True
            for number, (label, case) in enumerate(cases):
                # A lone surrogate cannot be sent from a worker of the run.
                shown = label.encode(errors="backslashreplace").decode()
                with subtests.test(shown), pytest.MonkeyPatch.context() as patch:
                    own: dict[str, Any] = {"monkeypatch": patch} if "monkeypatch" in fixtures else {}
                    if "tmp_path" in fixtures:
                        own["tmp_path"] = fixtures["tmp_path"] / f"case-{number}"
                        own["tmp_path"].mkdir()
                    inner(**fixtures | own | case)

        keyword = inspect.Parameter.KEYWORD_ONLY
        wanted = [each.replace(kind=keyword) for name, each in parameters.items() if name not in cases[0][1]]
        signature = inspect.Signature([*wanted, inspect.Parameter("subtests", keyword)])
        run.__signature__, run.each = signature, (inner, cases)  # type: ignore[attr-defined]
        return run

    return decorate


def _labelled(
    names: list[str], values: list[Any], ids: Iterable[Any] | Callable[[Any], Any] | None
) -> list[tuple[str, dict[str, Any]]]:
    """The values by the names of their parameters, with what a report calls them."""
    assert values, f"no values of {names}"
    rows = [value if len(names) > 1 else (value,) for value in values]
    if ids is None or callable(ids):
        labels = [" ".join(str(ids(part) if ids else part)[:60] for part in row) for row in rows]
    else:
        labels = [str(label) for label in ids]
    cases = [dict(zip(names, row, strict=True)) for row in rows]
    return list(zip(labels, cases, strict=True))
