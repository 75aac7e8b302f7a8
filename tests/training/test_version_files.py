"""What a registry holds may be anything: a version is copied whole, or refused with the reason."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

from rca.errors import BundleError, SourceError
from rca.lab.training import version_files
from rca.lab.training.tracking import import_pyfunc
from rca.lab.training.version_files import download, read_text

pytestmark = pytest.mark.slow

MANIFEST = b'{"files": {}}'
SHA256 = hashlib.sha256(MANIFEST).hexdigest()
DESCRIPTION = "flavors:\n  python_function:\n    data: data/baseline\n"


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "store" / "artifacts"
    bundle = folder / "data" / "baseline"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_bytes(MANIFEST)
    (bundle / "mode.txt").write_text("tree")
    (folder / "MLmodel").write_text(DESCRIPTION)
    return folder


def fetched(version: Path) -> Path:
    return download(
        version.as_uri(), f"sqlite:///{version.parent / 'mlflow.db'}", version.parents[1] / "copy", SHA256
    )


def test_a_whole_version_is_copied(version: Path) -> None:
    bundle = fetched(version)
    assert bundle.is_relative_to(version.parents[1] / "copy")
    assert sorted(path.name for path in bundle.iterdir()) == ["manifest.json", "mode.txt"]


def describe(text: str | bytes) -> Callable[[Path], object]:
    content = text.encode() if isinstance(text, str) else text
    return lambda version: (version / "MLmodel").write_bytes(content)


def without_description(version: Path) -> None:
    (version / "MLmodel").unlink()


def with_a_folder_as_description(version: Path) -> None:
    without_description(version)
    (version / "MLmodel" / "inside").mkdir(parents=True)


def without_anything(version: Path) -> None:
    version.rename(version.with_name("elsewhere"))


def as_a_file(version: Path) -> None:
    without_anything(version)
    version.write_text("artifacts")


def without_manifest(version: Path) -> None:
    (version / "data" / "baseline" / "manifest.json").unlink()


def with_a_folder_as_manifest(version: Path) -> None:
    without_manifest(version)
    (version / "data" / "baseline" / "manifest.json").mkdir()


def with_another_manifest(version: Path) -> None:
    (version / "data" / "baseline" / "manifest.json").write_bytes(b"{}")


def with_a_huge_file(version: Path) -> None:
    with (version / "data" / "huge").open("wb") as file:
        # Sparse: it takes no space until it is copied.
        file.truncate(1 << 40)


def with_many_files(version: Path) -> None:
    for number in range(300):
        (version / "data" / str(number)).touch()


def with_a_loop(version: Path) -> None:
    (version / "data" / "loop").symlink_to(version)


def with_a_link_outside(version: Path) -> None:
    (version / "data" / "link").symlink_to("/etc")


def with_a_bundle_elsewhere(version: Path) -> None:
    outside = version.parents[1] / "outside"
    (version / "data" / "baseline").rename(outside)
    describe(f"flavors: {{python_function: {{data: {outside}}}}}")(version)


SPOILT = [
    (without_anything, "no file MLmodel"),
    (as_a_file, "MLmodel"),
    (without_description, "no file MLmodel"),
    (with_a_folder_as_description, "no file MLmodel"),
    (without_manifest, "not the one that was registered"),
    (with_a_folder_as_manifest, "not the one that was registered"),
    (with_another_manifest, "not the one that was registered"),
    (with_a_huge_file, "more than 256 MiB"),
    (with_many_files, "more than 256 files"),
    (with_a_loop, "MLflow refuses"),
    (with_a_link_outside, "MLflow refuses"),
    (with_a_bundle_elsewhere, "outside the version"),
    (describe("flavors: {python_function: {data: ../../../outside}}"), "outside the version"),
    (describe("flavors: {python_function: {data: nowhere}}"), "not the one that was registered"),
    (describe('flavors: {python_function: {data: "a\\0b"}}'), "cannot be read"),
    (describe("flavors: {python_function: {data: 7}}"), "cannot be read"),
    (describe("flavors: {python_function: {data: null}}"), "cannot be read"),
    (describe("flavors: {python_function: baseline}"), "cannot be read"),
    (describe("flavors: [python_function]"), "cannot be read"),
    (describe("flavors: {}"), "cannot be read"),
    (describe("[1, 2]"), "cannot be read"),
    (describe("garbage"), "cannot be read"),
    (describe(""), "cannot be read"),
    (describe("a: b: c: {"), "cannot be read"),
    (describe("!!python/object:os.system {}"), "cannot be read"),
    (describe(b"\xff\xfe\x00flavors"), "cannot be read"),
    (describe(b"flavors: \xe9"), "cannot be read"),
    (describe("[" * 60_000), "cannot be read"),
    (describe("x" * 70_000), "more than 64 KiB"),
]


@pytest.mark.system
@pytest.mark.parametrize(("spoil", "reason"), SPOILT)
def test_files_that_cannot_be_used_reject_the_version(
    version: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    spoil(version)
    with pytest.raises(BundleError, match=reason):
        fetched(version)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_disk_that_fails_rejects_nothing(
    version: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(**_: Any) -> None:
        raise OSError(number, "the disk fails")

    monkeypatch.setattr(import_pyfunc().artifacts, "download_artifacts", fail)
    with pytest.raises(SourceError, match="the disk fails"):
        fetched(version)


class Runs:
    """A client whose runs have their artifacts in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list_artifacts(self, _: str, folder: str | None) -> Any:
        return import_pyfunc().artifacts.list_artifacts(artifact_uri=self._folder.as_uri())

    def download_artifacts(self, _: str, name: str) -> str:
        return str(self._folder / name)


def test_documents_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_files, "_MAX_TEXT_BYTES", 100)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "card.md").write_text("é")
    (folder / "bytes.md").write_bytes(b"\xff\xff")
    (folder / "large.md").write_text("x" * 101)
    (folder / "folder.md" / "x").mkdir(parents=True)

    class Client(Runs):
        def list_artifacts(self, run: str, folder: str | None) -> Any:
            found = super().list_artifacts(run, folder)
            for each in found:
                each._path = each.path.rpartition("/")[2]
            return found

    client = Client(folder)
    assert read_text(client, "run", "card.md") == "é"
    assert read_text(client, "run", "none.md") == ""
    for name in ("bytes.md", "large.md", "folder.md"):
        with pytest.raises(BundleError, match=name):
            read_text(client, "run", name)
