"""The reference pages say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel

from rca.diagnosis import result
from rca_api.shell import reference
from tests.for_each import for_each

FOLDER = Path("docs/reference")
COMMAND = "python -m rca_api.shell.reference docs/reference"


@for_each("name", reference.PAGES)
def test_a_page_written_from_the_code_is_current(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == reference.PAGES[name](), f"run {COMMAND}"


def test_the_page_of_the_answer_has_every_field() -> None:
    page = (FOLDER / "answer.md").read_text(encoding="utf-8")
    first_column = "\n".join(re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE))
    models = {
        value
        for value in vars(result).values()
        if isinstance(value, type)
        and issubclass(value, BaseModel)
        and value.__module__.startswith("rca.diagnosis.")
    }
    fields = {field for model in models for field in model.model_fields}
    assert fields <= set(re.findall(r"`(\w+)`", page))
    assert set(re.findall(r"`(\w+)`", first_column)) <= fields
