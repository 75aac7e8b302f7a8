"""The reference pages say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema_rs
from pydantic import BaseModel

import rca
from rca.diagnosis import result
from rca_api.shell import reference
from tests.for_each import for_each

FOLDER = Path("docs/reference")
COMMAND = "python -m rca_api.shell.reference docs/reference"


@for_each("name", reference.PAGES)
def test_a_page_written_from_the_code_is_current(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == reference.PAGES[name](), f"run {COMMAND}"


def test_the_schema_of_a_window_takes_real_windows_and_refuses_wrong_ones() -> None:
    schema = jsonschema_rs.Draft202012Validator(json.loads((FOLDER / "window.schema.json").read_text()))
    document = json.loads(rca.read_window("data/windows/cpu-contention-node").to_json())
    schema.validate(document)
    for table, column, wrong in (
        ("steps", "step_seconds", [-1.0]),
        ("steps", "rank", []),
        ("job", "world_size", "eight"),
    ):
        assert not schema.is_valid({**document, table: {**document[table], column: wrong}})
    assert not schema.is_valid({"steps": document["steps"]})


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
