"""Files of the collector: what is written is read, and damage costs one block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rca.collect.segments import (
    OPEN_STEP,
    SAMPLES,
    STEPS,
    SegmentWriter,
    event_block,
    read_segment,
    table_block,
)
from tests.for_each import for_each

HEADER = {"rank": 0, "steps": ["step", "start_time"], "series": [["a", None]]}


def steps(*numbers: float) -> bytes:
    return table_block(STEPS, np.array([[number, 0.5] for number in numbers]))


def written(folder: Path, *blocks: bytes, max_bytes: int = 1 << 20) -> list[Path]:
    writer = SegmentWriter(folder, "rank-0", HEADER, max_bytes)
    for block in blocks:
        writer.append(block)
    writer.close()
    return sorted(folder.iterdir())


def test_all_kinds_of_blocks_come_back(tmp_path: Path) -> None:
    blocks = (
        steps(1, 2),
        table_block(OPEN_STEP, np.array([3.0, np.nan])),
        table_block(SAMPLES, np.array([[9.0, 1.5]])),
        event_block({"kind": "log", "message": "é"}),
        steps(3),
    )
    (path,) = written(tmp_path / "new", *blocks)
    found = read_segment(path.read_bytes())
    assert found.header["segment"] == 0
    assert found.steps[:, 0].tolist() == [1, 2, 3]
    assert found.open_step is not None
    assert found.open_step[0] == 3
    assert found.samples.tolist() == [[9.0, 1.5]]
    assert found.events == [{"kind": "log", "message": "é"}]
    assert found.damaged_bytes == 0


def test_no_rows_are_no_block() -> None:
    assert table_block(STEPS, np.empty((0, 2))) == b""


@for_each("cut", range(1, 40))
def test_a_cut_block_is_skipped(tmp_path: Path, cut: int) -> None:
    (path,) = written(tmp_path, steps(1), steps(2))
    body = path.read_bytes()[:-cut] if cut < len(steps(2)) else path.read_bytes()[: -len(steps(2))]
    found = read_segment(body)
    assert found.steps[:, 0].tolist() == [1]
    assert found.damaged_bytes == max(0, len(steps(2)) - cut)


def test_a_damaged_block_costs_only_itself(tmp_path: Path) -> None:
    (path,) = written(tmp_path, steps(1), steps(2), steps(3))
    body = bytearray(path.read_bytes())
    body[-len(steps(3)) - 4] ^= 0xFF
    found = read_segment(bytes(body))
    assert found.steps[:, 0].tolist() == [1, 3]
    assert found.damaged_bytes == len(steps(2))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "first line is damaged"),
        (b'{"rca_collect": {"format": 1, "ste', "first line is damaged"),
        (b'{"rca_collect": {"format": 2, "steps": [], "series": []}}\n', "format 2"),
    ],
)
def test_a_file_without_a_whole_header_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_segment(body)


def test_the_oldest_segments_go_beyond_the_limit(tmp_path: Path) -> None:
    limit = 64 * 1024
    block = table_block(STEPS, np.ones((100, 2)))
    paths = written(tmp_path, *[block] * 200, max_bytes=limit)
    assert paths[-1].name > "rank-0-000010"
    assert "rank-0-000000.rcac" not in {path.name for path in paths}
    assert limit / 2 < sum(path.stat().st_size for path in paths) <= limit
    assert all(read_segment(path.read_bytes()).damaged_bytes == 0 for path in paths)


def test_a_disk_that_takes_nothing_is_an_error_of_the_writer(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    writer = SegmentWriter(blocker / "folder", "rank-0", HEADER, 1 << 20)
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        writer.append(steps(1))
