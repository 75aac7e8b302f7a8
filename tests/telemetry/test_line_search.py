"""Lines of interest are found as Python's `re` finds them, whatever lies between the blocks of a file."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest

import rca
from rca.errors import InvalidInput, SourceError
from rca.sources.logs import line_search
from rca.sources.logs.line_search import first_that_occurs, matching_lines
from rca.sources.megatron_timers import _WANTED as MEGATRON
from rca.sources.mlperf import _WANTED as MLPERF
from rca.sources.nvrx.window import _WANTED as NVRX
from rca.sources.watchdog.messages import WANTED as WATCHDOG

PIECES = (
    b"[rank3]:", b"  exitcode  : -9 (pid: 4)", b"last enqueued work: 7", b"rank  0: 12.30", b"   ", b"\t",
    b"\xff\xfe", b"NCCL WARN", b"iteration 7/ 10 |", b"  forward:", b"time (ms) | a: 1", b" : ", b"nranks 8",
    b"\x1b[31m", b"x" * 90,
    b':::MLLOG {"tracked_stats"', b"Rank=3 Node=a Score=0.5", b"\xc3\xa9", b"|", b"...: 1",
)  # fmt: skip


def noise(seed: int, n_lines: int = 400) -> bytes:
    """Lines of pieces that matter, whole and cut, with breaks of all kinds."""
    draw = random.Random(seed)
    lines = []
    for _ in range(n_lines):
        parts = [draw.choice(PIECES) for _ in range(draw.randrange(5))]
        parts = [part[draw.randrange(3) :] if draw.random() < 0.2 else part for part in parts]
        lines.append(b"".join(parts) + draw.choice([b"\n", b"\n", b"\r\n", b"\r"]))
    return b"".join(lines)


def expected(data: bytes, wanted: re.Pattern[bytes]) -> list[bytes]:
    return [line for line in data.replace(b"\r", b"\n").split(b"\n") if wanted.search(line)]


@pytest.mark.parametrize(
    "wanted", [WATCHDOG, MEGATRON, MLPERF, NVRX], ids=["watchdog", "megatron", "mlperf", "nvrx"]
)
@pytest.mark.parametrize("ending", [b"", b"\n", b"NCCL WARN"], ids=["cut", "whole", "match"])
def test_the_same_lines_as_by_re(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: re.Pattern[bytes], ending: bytes
) -> None:
    for seed, block in enumerate((7, 64, 1000, 1 << 22)):
        monkeypatch.setattr(line_search, "BLOCK_BYTES", block)
        data = noise(seed) + ending
        (tmp_path / "log").write_bytes(data)
        (tmp_path / "log.gz").write_bytes(gzip.compress(data))
        found = list(matching_lines(tmp_path / "log", wanted))
        assert found == expected(data, wanted)
        assert len(found) > 20
        assert list(matching_lines(tmp_path / "log.gz", wanted)) == found


def test_the_rest_of_a_long_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"NCCL WARN" + b"y" * 200_000 + b"\nNCCL WARN again\n")
    first, second = matching_lines(tmp_path / "log", WATCHDOG)
    assert (len(first), second) == (line_search.MAX_LINE_LENGTH, b"NCCL WARN again")


def test_the_first_pattern_wins_wherever_it_occurs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_search, "BLOCK_BYTES", 16)
    patterns = [re.compile(rb"aaa"), re.compile(rb"^bb", re.MULTILINE), re.compile(rb"c\d")]
    log = tmp_path / "log"
    for text, number in (
        (b"c1\nx bb\nbb\nx aaa\n", 0),
        (b"c1\nc2\nbb\n", 1),
        (b"x c7", 2),
        (b"x bb\n", None),
        (b"", None),
    ):
        log.write_bytes(text)
        assert first_that_occurs(log, patterns) == number


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nothing\.log: cannot be read"):
        list(matching_lines(tmp_path / "nothing.log", WATCHDOG))
    damaged = tmp_path / "job.gz"
    damaged.write_bytes(gzip.compress(noise(1))[:-20])
    with pytest.raises(InvalidInput, match=r"job\.gz: the gzip data is damaged"):
        list(matching_lines(damaged, WATCHDOG))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_log_in_utf_16_is_read(tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_search, "BLOCK_BYTES", 512)
    path = tmp_path / "train.log"
    text = "\ufeff" + 300 * "grün\r\n" + "[rank3]: torch.OutOfMemoryError: CUDA out of memory.\r\n"
    path.write_bytes(text.encode(encoding))
    assert [row["rank"] for row in rca.read_window(path).events.to_pylist()] == [3]
