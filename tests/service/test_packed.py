"""Documents are packed in the database, and those of earlier versions are read as well."""

from __future__ import annotations

import hashlib
from pathlib import Path

import orjson
import pytest
from answers_made_up import answer, kept
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

import rca
from rca_api.diagnoses import repository
from rca_api.diagnoses.journal import Journal
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.store import packed
from rca_api.shell.store.database import Database
from rca_api.shell.store.packed import pack, unpack

WINDOWS = Path(__file__).parents[2] / "data" / "windows"


def test_the_examples_are_as_they_were() -> None:
    """Documents in databases cannot be unpacked with others."""
    digest = hashlib.sha256(packed._EXAMPLES.read_bytes()).hexdigest()
    assert digest == "45106283f6441d3b4f2d9e9219da7632c1c4a8690f3637aa387ab1c66738c849"


@given(
    st.dictionaries(
        st.text(), st.integers(-(2**63), 2**63 - 1) | st.text() | st.lists(st.floats(allow_nan=False))
    )
)
def test_packing_loses_nothing(document: dict[str, object]) -> None:
    plain = orjson.dumps(document)
    assert unpack(pack(plain)) == plain
    assert unpack(plain) == plain


@pytest.mark.parametrize("name", ["cpu-contention-node", "healthy"])
def test_a_real_answer_is_packed_to_less_than_a_third(name: str) -> None:
    document = orjson.dumps(rca.diagnose(rca.read_window(WINDOWS / name)).to_dict())
    assert len(pack(document)) < len(document) / 3


@pytest.mark.parametrize("packs", [True, False])
def test_a_document_is_read_as_it_was_written(database: Database, packs: bool) -> None:
    given_ = answer()
    Journal(database, Metrics(), (), lambda _: True, packed=packs).record(kept(), given_, asked_by=None)
    with database.reading() as session:
        row = repository.find(session, given_.diagnosis_id)
        stored = session.scalar(text("SELECT document FROM diagnoses"))
    assert row is not None
    assert row.document == given_.document
    # An older version reads what is not packed.
    assert (bytes(stored) == given_.document) is not packs  # type: ignore[arg-type]
