"""A simulated collection: the same bytes whatever interrupted it and however many processes wrote it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.lab.training.collection import simulate_collection
from rca.sources.labels import MANIFEST_FILE, read_collection
from rca.workers import MIN_WINDOWS, Workers
from tests.waiting import until

N_WINDOWS = MIN_WINDOWS + 8
SEED = 11


def content(folder: Path) -> dict[str, bytes]:
    """Every file, hidden ones and leftovers too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by one process, without interruption."""
    folder = tmp_path_factory.mktemp("whole") / "corpus"
    assert simulate_collection(folder, N_WINDOWS, SEED) == N_WINDOWS
    return folder


@pytest.mark.long
@pytest.mark.slow
def test_workers_have_no_influence_on_any_byte(whole: Path, tmp_path: Path, two_workers: Workers) -> None:
    simulate_collection(tmp_path / "corpus", N_WINDOWS, SEED, workers=two_workers)
    assert content(tmp_path / "corpus") == content(whole)


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_run_resumes_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    command = (sys.executable, "-m", "rca.cli", "simulate", str(folder), "--seed", str(SEED))
    running = subprocess.Popen(
        [*command, "--windows", str(N_WINDOWS), "--processes", "2"], stderr=subprocess.DEVNULL
    )
    until(lambda: n_windows(folder) >= 5, pause=0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    settle(folder)
    assert 5 <= n_windows(folder) < N_WINDOWS, "killed too early or too late to prove anything"
    # What a kill in the middle of a window leaves behind.
    (folder / f".mixture-{SEED}-00002.abcd1234.new").mkdir()
    if (folder / MANIFEST_FILE).exists():
        assert all(entry.path.exists() for entry in read_collection(folder))
    assert simulate_collection(folder, N_WINDOWS, SEED) == N_WINDOWS
    assert content(folder) == content(whole)
    assert not list(folder.glob(".*"))


def n_windows(folder: Path) -> int:
    return len(list(folder.glob(f"mixture-{SEED}-*")))


def settle(folder: Path) -> None:
    """Wait until the killed run's workers have noticed and nothing changes any more."""
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        now = n_windows(folder)
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_run(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    running = subprocess.Popen(
        [sys.executable, "-m", "rca.cli", "simulate", str(folder), "--windows", "2000", "--processes", "2"],
        stderr=subprocess.DEVNULL,
    )
    until(lambda: list(folder.glob("mixture-*")))
    workers = children(running.pid)
    assert workers
    running.kill()
    running.wait()
    until(lambda: not [pid for pid in workers if is_alive(pid)])


def children(pid: int) -> list[int]:
    # Any thread may start a process.
    listed = list(Path(f"/proc/{pid}/task").glob("*/children"))
    if not listed:
        pytest.skip("this kernel does not list children")
    return [int(each) for place in listed for each in place.read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.system
def test_a_larger_collection_begins_with_the_smaller_one(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    simulate_collection(folder, 3, SEED)
    before = {name: held for name, held in content(folder).items() if name != MANIFEST_FILE}
    assert before.items() <= content(whole).items()
    told: list[tuple[int, int]] = []
    simulate_collection(folder, 5, SEED, progress=lambda done, total: told.append((done, total)))
    assert told == [(3, 5), (4, 5), (5, 5)]
    assert before.items() <= content(folder).items()


def test_a_window_s_seed_is_the_spawned_one() -> None:
    spawned = np.random.SeedSequence(SEED).spawn(3)[2]
    named = np.random.SeedSequence(SEED, spawn_key=(2,))
    assert spawned.generate_state(4).tolist() == named.generate_state(4).tolist()


@pytest.mark.parametrize(("seed", "cause"), [(SEED + 1, None), (SEED, "hang")])
def test_another_collection_in_the_folder_is_refused(tmp_path: Path, seed: int, cause: str | None) -> None:
    simulate_collection(tmp_path, 1, SEED)
    with pytest.raises(InvalidInput, match="holds another collection"):
        simulate_collection(tmp_path, 1, seed, cause=cause)
    assert len(read_collection(tmp_path)) == 1


def test_an_interrupted_run_leaves_a_manifest_of_what_is_there(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate_collection(tmp_path, 9, SEED, progress=interrupt)
    assert [entry.path.exists() for entry in read_collection(tmp_path)] == [True] * 3


def test_asking_for_fewer_windows_leaves_the_others_listed(tmp_path: Path) -> None:
    simulate_collection(tmp_path, 3, seed=5)
    assert simulate_collection(tmp_path, 2, seed=5) == 3
    assert len(read_collection(tmp_path)) == 3
