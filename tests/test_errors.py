"""An error that is raised again with another message keeps its kind and its evidence."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

from rca.errors import InvalidWindow

ROOT = Path(__file__).parents[1]
EDITED = re.compile(r"\berror\.(message|hint|path|rows|code) = ")


def test_a_restated_error_keeps_its_evidence_and_leaves_the_first_as_it_was() -> None:
    first = InvalidWindow(
        "is negative", table="steps", column="rank", rows=[{"row": 3}], expected="0 or more"
    )
    second = first.restated("window 'a': is negative", path="a/b")
    assert type(second) is InvalidWindow
    assert second.details() == first.details() | {"path": "a/b"}
    assert (second.message, first.message, first.path) == ("window 'a': is negative", "is negative", None)
    assert str(pickle.loads(pickle.dumps(second))) == str(second)  # noqa: S301


def test_no_raised_error_is_edited() -> None:
    files = [file for folder in ("rca", "api", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    assert [file for file in files if EDITED.search(file.read_text())] == []
