"""YAML that people write is checked; errors name the file, the line and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from rca.errors import InvalidInput, RcaError, SourceError
from rca.yaml_documents import MAX_BYTES, read_document
from tests.for_each import for_each

HINT = "see the guide"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: int = Field(default=1, ge=1)


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = "none"
    parts: list[Part] = []


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "model.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_yaml_json_and_nothing_are_read(tmp_path: Path) -> None:
    whole = Model(name="a", parts=[Part(size=2), Part()])
    assert read_document(written(tmp_path, "name: a\nparts:\n- size: 2\n- {}\n"), Model, hint=HINT) == whole
    assert (
        read_document(written(tmp_path, '{"name": "a", "parts": [{"size": 2}, {}]}'), Model, hint=HINT)
        == whole
    )
    assert read_document(written(tmp_path, "# nothing\n"), Model, hint=HINT) == Model()


@pytest.mark.system
@for_each(
    ("text", "message"),
    [
        (
            "name: a\nparts:\n- size: 2\n- size: 0\n",
            "model.yaml: line 4: parts.1.size: Input should be",
        ),
        ("name: a\nparts:\n- size: 2\n  sise: 3\n", "line 4: parts.0.sise: Extra inputs are not permitted"),
        ("# first\nnames: a\n", "line 2: names: Extra inputs are not permitted"),
        ("parts: 5\n", "line 1: parts: Input should be a valid list"),
        ("name: a\nparts: [", "model.yaml: line 2 is no YAML: "),
        ("name: a\n\tparts: b\n", "line 2 is no YAML: found character"),
        ("- a\n", "model.yaml: needs names and values, not a list"),
        ("text", "not a str"),
        (b"\xff\xfe", "is no text in UTF-8"),
        ("x" * (MAX_BYTES + 1), "the limit is 1,048,576 bytes"),
        ("name: " + "[" * 5000, "is no YAML"),
        ("name: 2026-99-99\n", "is no YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_document(written(tmp_path, text), Model, hint=HINT)
    assert message in str(caught.value)
    assert caught.value.hint == HINT


@pytest.mark.parametrize("name", ["nothing.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(RcaError, match="cannot be read") as caught:
        read_document(tmp_path / name, Model, hint=HINT)
    assert isinstance(caught.value, SourceError)
