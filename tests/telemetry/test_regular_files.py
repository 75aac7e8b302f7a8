"""Readers open regular files only: pipes, sockets and devices are refused at once."""

from __future__ import annotations

import ast
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rca
from rca import files
from rca.classify.operator_inputs import read_priors
from rca.diagnosis.bundle import Bundle
from rca.errors import RcaError
from rca.recovery.site import Site
from rca.sources.labels import read_collection, read_label
from rca.sources.prometheus.credentials import read_token, trust
from rca.sources.prometheus.label_map import read_label_map
from rca.whatif.trace.reader import count_rows, read_trace
from rca.window.topology import with_topology
from tests.for_each import for_each

ROOT = Path(__file__).parents[2]
HEALTHY = ROOT / "data" / "windows" / "healthy"
READERS: dict[str, Callable[[Path], Any]] = {
    "window": rca.read_window,
    "bundle": lambda path: Bundle.load(_named(path, "manifest.json")),
    "collection": lambda path: read_collection(_named(path, "manifest.json")),
    "label": read_label,
    "priors": read_priors,
    "site": Site.read,
    "label map": read_label_map,
    "token": read_token,
    "certificates": trust,
    "topology": lambda path: with_topology(rca.read_window(HEALTHY), [path]),
    "trace": lambda path: read_trace(path, {}),
    "rows of a trace": count_rows,
}


def _named(path: Path, name: str) -> Path:
    """A folder with a link of this name to a file."""
    folder = path.with_name(f"folder of {path.name}")
    folder.mkdir()
    (folder / name).symlink_to(path)
    return folder


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    return pipe_in(tmp_path)


def pipe_in(folder: Path) -> Path:
    """A pipe without a writer: who opens it waits for ever."""
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


@for_each("read", READERS.values(), ids=READERS)
def test_a_pipe_is_refused_at_once(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(RcaError, match="it is a pipe, not a regular file"):
        read(pipe_in(tmp_path))


@pytest.mark.system
def test_other_kinds_are_refused_and_named(tmp_path: Path, pipe: Path) -> None:
    with socket.socket(socket.AF_UNIX) as held:
        # Paths of sockets are short.
        where = os.open(tmp_path, os.O_RDONLY)
        held.bind(f"/proc/self/fd/{where}/socket")
        os.close(where)
        (tmp_path / "link").symlink_to(pipe)
        kinds = {
            tmp_path / "socket": "a socket",
            tmp_path / "link": "a pipe",
            Path("/dev/zero"): "a device",
            tmp_path: "a folder",
        }
        for path, kind in kinds.items():
            with pytest.raises(rca.SourceError, match=f"it is {kind}, not a regular file") as refused:
                files.open_file(path)
            assert refused.value.hint
    with pytest.raises(rca.SourceError, match="is a device"):
        rca.read_window("/dev/zero")
    with pytest.raises(FileNotFoundError):
        files.open_file(tmp_path / "none")


@pytest.mark.parametrize("name", ["window.json", "steps.parquet", "metrics.parquet"])
def test_a_pipe_in_the_folder_of_a_window_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "window"
    shutil.copytree(HEALTHY, folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(rca.SourceError, match=rf"{name}: cannot be read: it is a pipe"):
        rca.read_window(folder)


def test_a_pipe_among_the_files_of_a_source_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank1.csv")
    (tmp_path / "rank0.csv").write_text(
        "rank,step,start_time,step_ms\n0,1,1700000000,100\n0,2,1700000001,100\n"
    )
    assert rca.read_window(tmp_path).steps.num_rows == 2


def test_readers_of_telemetry_open_files_in_one_place() -> None:
    opened = set()
    readers = [ROOT / "rca" / "files.py", ROOT / "rca" / "yaml_documents.py"]
    for folder in ("window", "sources"):
        readers += (ROOT / "rca" / folder).rglob("*.py")
    for module in readers:
        for node in ast.walk(ast.parse(module.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in ("open", "read_bytes", "read_text"):
                opened.add((module.name, ast.unparse(called)))
    # A file that is written.
    assert opened - {("files.py", "fresh.open")} == {("files.py", "os.open")}
