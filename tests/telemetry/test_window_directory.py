"""A window's folder appears whole or not at all, and nothing else is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from telemetry_windows import metrics, rows_of, window

from rca.errors import InvalidWindow, SourceError
from rca.sources.read import read_window
from rca.window import Window
from rca.window.encodings import directory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "window"
    window(metrics=metrics((1, "node_load1", 2.0))).to_directory(path)
    return path


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_only_tables_with_rows_are_written(folder: Path) -> None:
    assert names(folder) == ["metrics.parquet", "steps.parquet", "window.json"]


def test_parents_are_made_and_nothing_is_left_behind(tmp_path: Path) -> None:
    window().to_directory(tmp_path / "a" / "b")
    assert names(tmp_path / "a") == ["b"]


def test_an_unlabelled_window_is_replaced_as_a_whole(folder: Path) -> None:
    window().to_directory(folder)
    assert names(folder) == ["steps.parquet", "window.json"]
    assert names(folder.parent) == ["window"]


def test_a_folder_of_other_files_is_left_alone(folder: Path) -> None:
    (folder / "thesis.tex").touch()
    with pytest.raises(SourceError, match=r"thesis\.tex"):
        window().to_directory(folder)
    assert (folder / "metrics.parquet").exists()


def test_a_label_is_not_lost(folder: Path) -> None:
    (folder / "label.json").touch()
    with pytest.raises(SourceError, match="label would be lost"):
        window().to_directory(folder)


def test_a_file_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="not a directory"):
        window().to_directory(tmp_path / "file")


def test_a_failed_write_leaves_the_old_window(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    before = rows_of(read_window(folder).metrics)
    monkeypatch.setattr(directory.pq, "write_table", full_disk)
    with pytest.raises(SourceError, match="No space left"):
        window().to_directory(folder)
    assert rows_of(read_window(folder).metrics) == before
    assert names(folder.parent) == ["window"]


def test_a_failed_rename_puts_the_old_window_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def no_new_window(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", no_new_window)
    with pytest.raises(SourceError, match="Input/output error"):
        window().to_directory(folder)
    assert read_window(folder).metrics.num_rows == 1
    assert names(folder.parent) == ["window"]


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such"):
        read_window(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="no such directory"):
        Window.from_directory(tmp_path / "nowhere")


def test_a_folder_that_is_no_window(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"window\.json: no such file"):
        read_window(tmp_path)


def test_steps_or_metrics_are_needed(folder: Path) -> None:
    (folder / "steps.parquet").unlink()
    assert read_window(folder).steps.num_rows == 0
    (folder / "metrics.parquet").unlink()
    with pytest.raises(InvalidWindow, match=r"steps\.parquet is missing"):
        read_window(folder)


@pytest.mark.parametrize("name", ["steps", "metrics"])
@pytest.mark.parametrize("content", [b"", b"rank,step\n0,1\n", b"PAR1" + b"\x00" * 40 + b"PAR1"])
def test_files_that_are_no_parquet(folder: Path, name: str, content: bytes) -> None:
    (folder / f"{name}.parquet").write_bytes(content)
    with pytest.raises(InvalidWindow, match=rf"{name}\.parquet") as caught:
        read_window(folder)
    assert caught.value.table == name


def test_a_damaged_page_is_noticed(folder: Path) -> None:
    path = folder / "steps.parquet"
    body = bytearray(path.read_bytes())
    body[4:60] = b"\xff" * 56
    path.write_bytes(body)
    with pytest.raises(InvalidWindow) as caught:
        read_window(folder)
    assert caught.value.table == "steps"


def test_metadata_that_is_no_json(folder: Path) -> None:
    (folder / "window.json").write_text("{")
    with pytest.raises(InvalidWindow, match="is not JSON"):
        read_window(folder)


def test_a_path_like_a_partition_adds_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "seed=5" / "window"
    window().to_directory(path)
    assert read_window(path).notes == ()
