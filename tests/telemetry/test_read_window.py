"""One function reads a window in every encoding."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pytest
from telemetry_windows import window

from rca.errors import InvalidInput, InvalidWindow, SourceError, TooLarge
from rca.sources.read import read_window
from tests.for_each import for_each

JSON = window().to_json()
ARROW = window().to_arrow()
ZSTD = pa.compress(JSON, codec="zstd", asbytes=True)


@for_each("body", [JSON, b" \n" + JSON, ARROW, gzip.compress(JSON), gzip.compress(ARROW), ZSTD])
def test_content_tells_its_encoding(body: bytes, tmp_path: Path) -> None:
    (tmp_path / "any.name").write_bytes(body)
    for source in (body, bytearray(body), memoryview(body), io.BytesIO(body), tmp_path / "any.name"):
        assert read_window(source).steps.num_rows == 4
    assert read_window(str(tmp_path / "any.name")).steps.num_rows == 4


@pytest.mark.parametrize("body", [b"", b"rank,step", b"[]", b"\x00" * 9])
def test_other_content_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidWindow) as caught:
        read_window(body)
    assert caught.value.table == "window"


def test_a_single_parquet_file_gets_a_hint(tmp_path: Path) -> None:
    window().to_directory(tmp_path / "w")
    with pytest.raises(InvalidWindow, match="give the path of its directory"):
        read_window(tmp_path / "w" / "steps.parquet")


def test_truncated_compression_is_damage() -> None:
    with pytest.raises(InvalidWindow):
        read_window(gzip.compress(JSON)[:-20])
    with pytest.raises(InvalidWindow):
        read_window(b"\x1f\x8b" + b"\x07" * 30)


def test_a_limit_on_the_unpacked_size() -> None:
    with pytest.raises(TooLarge):
        read_window(gzip.compress(b"{" + b" " * 10_000_000), max_bytes=1_000_000)
    with pytest.raises(TooLarge):
        read_window(JSON, max_bytes=100)
    assert read_window(gzip.compress(JSON), max_bytes=len(JSON)).steps.num_rows == 4


def test_nothing_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or directory"):
        read_window(tmp_path / "nothing.json")


def test_a_picture_is_no_text_and_its_bytes_are_not_shown() -> None:
    with pytest.raises(InvalidWindow, match="is no text") as caught:
        read_window(b"\x89PNG\r\n\x1a\n" + bytes(100))
    assert caught.value.hint == "`rca sources` lists what can be read"
    with pytest.raises(InvalidWindow, match="begins with b'rank,ste', which is no known encoding"):
        read_window(b"rank,step\n0,1\n")


def test_an_empty_path_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "window.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match="the path is empty"):
        read_window("")


@pytest.mark.parametrize(
    ("content", "said"), [(b"", r"rank0\.log is empty"), (b"\x00\x01\x02" * 99, r"known kind: rank0\.log")]
)
def test_a_folder_of_unknown_files_names_them(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "rank0.log").write_bytes(content)
    with pytest.raises(InvalidInput, match=said) as refused:
        read_window(tmp_path)
    assert "rca sources" in str(refused.value.hint)


def test_a_window_without_its_job_still_misses_window_json(tmp_path: Path) -> None:
    (tmp_path / "steps.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match=r"window\.json: no such file"):
        read_window(tmp_path)


def test_a_folder_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(SourceError, match="cannot be read: Permission denied"):
        read_window(tmp_path)
