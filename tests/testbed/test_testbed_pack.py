"""Captures survive packing, and a damaged archive is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from rca.errors import InvalidInput, SourceError
from rca.lab.testbed.pack import pack, unpack
from rca.sources.labels import read_collection, read_label
from rca.sources.read import read_window

WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"
PARTS = {"healthy": "train", "slow-dataset": "test", "killed-rank": "test"}


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    folder = tmp_path / "campaign"
    for name in PARTS:
        shutil.copytree(WINDOWS / name, folder / name)
    entries = [{"id": name, "path": name, "split": part} for name, part in PARTS.items()]
    (folder / "manifest.json").write_bytes(orjson.dumps({"format": 1, "name": "t", "windows": entries}))
    return folder


@pytest.mark.system
def test_what_was_packed_comes_back(campaign: Path, tmp_path: Path) -> None:
    sizes = pack(campaign, tmp_path / "packed")
    assert set(sizes) == {"train.tar", "test.tar"}
    assert unpack(tmp_path / "packed", tmp_path / "again") == 3
    again = read_collection(tmp_path / "again")
    assert {entry.id: entry.summary["split"] for entry in again} == PARTS
    for name in PARTS:
        before, after = read_window(campaign / name), read_window(tmp_path / "again" / name)
        assert before.job == after.job
        for table in ("steps", "metrics", "events"):
            # As text, because NaN is not equal to itself.
            assert str(getattr(before, table).to_pydict()) == str(getattr(after, table).to_pydict())
        assert read_label(campaign / name) == read_label(tmp_path / "again" / name)


def test_packing_twice_gives_the_same_bytes(campaign: Path, tmp_path: Path) -> None:
    pack(campaign, tmp_path / "one")
    pack(campaign, tmp_path / "two")
    for name in ("train.tar", "test.tar", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_damaged_archive_is_refused_and_leaves_nothing(campaign: Path, tmp_path: Path) -> None:
    pack(campaign, tmp_path / "packed")
    archive = tmp_path / "packed" / "test.tar"
    content = bytearray(archive.read_bytes())
    content[5000] ^= 1
    archive.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"test\.tar: does not have the digest"):
        unpack(tmp_path / "packed", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    archive.unlink()
    with pytest.raises(SourceError, match=r"test\.tar"):
        unpack(tmp_path / "packed", tmp_path / "again")


def test_an_existing_folder_is_refused(campaign: Path, tmp_path: Path) -> None:
    pack(campaign, tmp_path / "packed")
    with pytest.raises(SourceError, match="already exists"):
        unpack(tmp_path / "packed", campaign)
    with pytest.raises(InvalidInput, match="lists no archives"):
        unpack(campaign, tmp_path / "again")
