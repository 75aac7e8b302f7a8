"""A cache of features changes how long a run takes, and nothing else."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import orjson
import pytest

import rca
from rca.errors import SourceError
from rca.lab.training import feature_cache, simulated
from rca.lab.training.corpus import Example, stack
from rca.lab.training.digests import files_digest, joint_digest, window_digest
from rca.lab.training.feature_cache import FeatureCache, cache_key, computing_files
from rca.lab.training.incidents import incident_examples, learned_incidents
from rca.lab.training.simulated import scenario_seeds, simulated_examples
from rca.workers import HERE, Workers

pytestmark = pytest.mark.system

WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"
N_WINDOWS, SEED = 12, 11


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return list(simulated_examples(N_WINDOWS, SEED, workers=HERE))


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    return FeatureCache(tmp_path / "cache")


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    for name in ("slow-dataset", "healthy"):
        shutil.copytree(WINDOWS / name, folder / name)
    entries = [{"id": name, "path": name, "split": "train"} for name in ("slow-dataset", "healthy")]
    (folder / "manifest.json").write_bytes(orjson.dumps({"format": 1, "windows": entries}))
    return folder


@pytest.fixture
def simulated_seeds(examples: list[Example], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of scenarios in the order in which they are simulated; their examples are made already."""
    made = dict(zip(scenario_seeds(N_WINDOWS, SEED), examples, strict=True))
    seeds: list[int] = []
    monkeypatch.setattr(simulated, "_simulated", lambda seed: seeds.append(seed) or made[seed])
    return seeds


def no_work(*_: Any) -> Example:
    raise AssertionError("computed although it was kept")


def test_what_is_kept_comes_back_to_the_last_bit(cache: FeatureCache, examples: list[Example]) -> None:
    odd = examples[0].window.copy()
    odd[:2] = np.array([0xFFF8000000000123, 0x8000000000000000], dtype=np.uint64).view(np.float64)
    kept = [replace(examples[0], window=odd, real=True), *examples[1:]]
    cache.write("k" * 64, kept)
    found = cache.read("k" * 64)
    assert found is not None
    assert stack(found).digest == stack(kept).digest
    assert found[0].window.tobytes() == odd.tobytes()
    assert [each.real for each in found] == [each.real for each in kept]
    assert [each.causes for each in found] == [each.causes for each in kept]


def test_nothing_to_learn_is_kept_too(cache: FeatureCache) -> None:
    cache.write("e" * 64, [])
    assert cache.read("e" * 64) == []


def test_a_corpus_is_the_same_with_without_and_from_the_cache(
    cache: FeatureCache, examples: list[Example], two_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = stack(examples).digest
    assert stack(simulated_examples(N_WINDOWS, SEED, workers=two_workers, cache=cache)).digest == bare
    monkeypatch.setattr(simulated, "_simulated", no_work)
    assert stack(simulated_examples(N_WINDOWS, SEED, workers=HERE, cache=cache)).digest == bare


def test_a_larger_corpus_finds_the_smaller_one(
    cache: FeatureCache,
    examples: list[Example],
    simulated_seeds: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulated, "BATCH", 4)
    list(simulated_examples(8, SEED, workers=HERE, cache=cache))
    simulated_seeds.clear()
    found = list(simulated_examples(N_WINDOWS, SEED, workers=HERE, cache=cache))
    assert simulated_seeds == scenario_seeds(N_WINDOWS, SEED)[8:]
    assert stack(found).digest == stack(examples).digest


def test_a_damaged_file_is_made_anew(
    cache: FeatureCache, examples: list[Example], simulated_seeds: list[int]
) -> None:
    list(simulated_examples(N_WINDOWS, SEED, workers=HERE, cache=cache))
    (file,) = cache.folder.rglob("*.npz")
    for content in (b"", file.read_bytes()[:-500], b"PK\x03\x04 not a zip"):
        file.write_bytes(content)
        simulated_seeds.clear()
        again = list(simulated_examples(N_WINDOWS, SEED, workers=HERE, cache=cache))
        assert simulated_seeds == scenario_seeds(N_WINDOWS, SEED)
        assert stack(again).digest == stack(examples).digest
    assert len(list(cache.folder.rglob("*"))) == 2, "a folder and the file, nothing half-written"


def test_processes_that_write_the_same_do_not_disturb_each_other(
    cache: FeatureCache, examples: list[Example]
) -> None:
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(partial(cache.write, examples=examples), ["s" * 64] * 12))
    found = cache.read("s" * 64)
    assert found is not None
    assert stack(found).digest == stack(examples).digest


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot keep features") as refused:
        FeatureCache(tmp_path / "file" / "cache").write("k" * 64, [])
    assert "--no-cache" in str(refused.value.hint)


def test_other_facts_or_other_code_have_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache_key("simulated", 1, 2)
    assert cache_key("simulated", 1, 2) == first
    assert cache_key("simulated", 1, 3) != first
    assert cache_key("incident", 1, 2) != first
    monkeypatch.setattr(feature_cache, "_code_digest", lambda: "edited")
    assert cache_key("simulated", 1, 2) != first


def test_all_code_that_an_example_runs_through_is_in_its_key(collection: Path) -> None:
    """Otherwise an edit there would leave stale features behind."""
    root = Path(rca.__file__).parent
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            called.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        list(simulated_examples(6, SEED, workers=HERE))
        list(incident_examples(learned_incidents(collection), SEED, workers=HERE, variants=3))
    finally:
        sys.setprofile(None)
    ours = {Path(name) for name in called if Path(name).is_relative_to(root)}
    keyed = set(computing_files(root))
    assert root / "lab" / "simulation" / "engine.py" in ours
    # Errors are words; the cache itself has a format number.
    harmless = {
        root / "errors.py",
        *(root / "lab" / "training" / name for name in ("feature_cache.py", "digests.py")),
    }
    assert ours - keyed - harmless == set()


def test_incidents_are_kept_until_window_or_label_changes(
    collection: Path, cache: FeatureCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(seed: int = 3) -> str:
        return stack(
            incident_examples(learned_incidents(collection), seed, workers=HERE, variants=3, cache=cache)
        ).digest

    bare = stack(incident_examples(learned_incidents(collection), 3, workers=HERE, variants=3)).digest
    assert found() == bare
    kept = len(list(cache.folder.rglob("*.npz")))
    assert kept == 2
    assert found() == bare
    assert len(list(cache.folder.rglob("*.npz"))) == kept
    assert found(seed=4) != bare
    label = collection / "healthy" / "label.json"
    label.write_bytes(label.read_bytes() + b"\n")
    found()
    assert len(list(cache.folder.rglob("*.npz"))) == 2 * kept + 1


def test_a_window_is_known_by_its_content(tmp_path: Path) -> None:
    shutil.copytree(WINDOWS / "healthy", tmp_path / "elsewhere")
    copy, original = tmp_path / "elsewhere", WINDOWS / "healthy"
    assert files_digest(copy) == files_digest(original)
    (copy / "label.json").write_text("{}")
    assert window_digest(copy) == window_digest(original)
    assert files_digest(copy) != files_digest(original)
    (copy / "window.json").write_text("{}")
    assert window_digest(copy) != window_digest(original)
    assert joint_digest(["a", "b"]) == joint_digest(["b", "a"]) != joint_digest(["a"])
