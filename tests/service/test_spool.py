"""Files of bodies: what processes leave goes, and what living ones hold stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rca_api.shell.processes import body
from rca_api.shell.processes.body import IN_MEMORY_BYTES, Received, Spool
from rca_api.shell.requests.admission import Admission, Ticket

pytestmark = pytest.mark.system

LARGE = b"x" * (IN_MEMORY_BYTES + 1)
HOLD = """
import sys, time
from pathlib import Path
from rca_api.shell.processes.body import Spool
spool = Spool(Path(sys.argv[1]))
spool.clean()
path, file = spool._opened()
file.write(b"body"); file.flush()
print(path, flush=True)
time.sleep(60)
"""


class Asked:
    """A request with a body of one piece, or one that does not end."""

    def __init__(self, content: bytes, *, ends: bool = True) -> None:
        self._content, self._ends = content, ends
        self.headers: dict[str, str] = {}

    async def stream(self) -> AsyncIterator[bytes]:
        yield self._content
        if not self._ends:
            await asyncio.sleep(60)


class Free(Admission):
    """Admission without limits."""

    def __init__(self) -> None:
        self.max_bytes, self.held_bytes = 1 << 40, 0

    def no_longer_receiving(self, caller: str) -> None:
        pass


def received(spool: Spool, asked: Asked) -> object:
    return spool.receive(asked, Ticket(Free(), ""), 1 << 30, 60)  # type: ignore[arg-type]


@contextmanager
def other_process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A service that holds a body."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_a_killed_process_left_goes_at_the_next_start(tmp_path: Path) -> None:
    with other_process(tmp_path / "spool") as (process, left):
        assert left.read_bytes() == b"body"
        process.send_signal(signal.SIGKILL)
        process.wait()
        spool = Spool(tmp_path / "spool")
        assert spool.clean() == 1
        assert not left.parent.exists()
        spool.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_what_a_living_process_holds_stays(tmp_path: Path) -> None:
    with other_process(tmp_path / "spool") as (_, held):
        os.utime(held, (0, 0))
        os.utime(held.parent, (0, 0))
        spool = Spool(tmp_path / "spool")
        assert spool.clean() == 0
        assert held.read_bytes() == b"body"
        spool.close()
        assert held.exists()


def test_several_services_of_one_process_leave_each_other_alone(tmp_path: Path) -> None:
    first, second = Spool(tmp_path), Spool(tmp_path)
    first.clean()
    path, file = first._opened()
    file.close()
    assert second.clean() == 0
    assert path.exists()
    first.close()
    assert second.clean() == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_many_start_at_once(tmp_path: Path) -> None:
    spools = [Spool(tmp_path / "spool") for _ in range(24)]
    threads = [threading.Thread(target=spool.clean) for spool in spools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [spool._opened() for spool in spools]
    for spool in spools:
        spool.clean()
    assert len({path.parent for path, _ in made if path.exists()}) == 24
    for _, file in made:
        file.close()


def test_a_body_exists_as_long_as_its_request(tmp_path: Path) -> None:
    async def run() -> None:
        spool = Spool(tmp_path)
        spool.clean()
        async with received(spool, Asked(LARGE)) as got:  # type: ignore[attr-defined]
            assert isinstance(got, Received)
            assert got.body.read() == LARGE
            os.utime(got.body.path, (0, 0))
            assert spool.clean() == 0
            assert got.body.read() == LARGE
        assert files(tmp_path) == []

    asyncio.run(run())


def test_the_file_of_a_request_that_was_cancelled_while_it_was_opened_goes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        spool = Spool(tmp_path)
        spool.clean()
        whole, opened = spool._opened, threading.Event()

        def slow() -> object:
            made = whole()
            opened.set()
            time.sleep(0.2)
            made[1].close()
            return made

        monkeypatch.setattr(spool, "_opened", slow)

        async def receive() -> None:
            async with received(spool, Asked(LARGE, ends=False)):  # type: ignore[attr-defined]
                pass

        task = asyncio.create_task(receive())
        await asyncio.to_thread(opened.wait)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (left,) = files(tmp_path)
        # It could be one that is just being opened.
        assert spool.clean() == 0
        os.utime(left, (time.time() - 100, time.time() - 100))
        assert spool.clean() == 1
        assert files(tmp_path) == []

    asyncio.run(run())


def test_the_folder_is_made_again_if_it_is_deleted(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.clean()
    (own,) = (tmp_path / "spool").iterdir()
    own.rmdir()
    path, file = spool._opened()
    file.close()
    assert path.exists()
    other = Spool(tmp_path / "spool")
    assert other.clean() == 0
    assert path.exists()


def test_old_files_of_an_earlier_version_go_by_age(tmp_path: Path) -> None:
    old, young = tmp_path / "body-1", tmp_path / "body-2"
    for path, age in ((old, 7200), (young, 60)):
        path.write_bytes(b"body")
        os.utime(path, (time.time() - age, time.time() - age))
    assert Spool(tmp_path).clean() == 1
    assert [path.name for path in files(tmp_path)] == ["body-2"]


def test_without_locks_the_age_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(body.fcntl, "flock", no_locks)
    first, second = Spool(tmp_path), Spool(tmp_path)
    first.clean()
    path, file = first._opened()
    file.close()
    assert second.clean() == 0
    os.utime(path.parent, (0, 0))
    assert second.clean() == 1
    assert not path.exists()
