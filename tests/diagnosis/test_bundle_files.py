"""A bundle that is not exactly what its manifest says is refused, before any of it is used."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rca
import rca_models
from rca.classify.booster import Booster
from rca.diagnosis.bundle import mark_registered
from rca.errors import BundleError
from rca.lab.training.bundle import packed
from rca_api.shell.processes.bundles import BundleRef, LoadedBundles

SHIPPED = Path(rca_models.__file__).parent / "baseline"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy of the shipped bundle that may be damaged."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "bundle"))


def edited(path: Path, change: Callable[[dict], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def sign(folder: Path) -> None:
    """Make the manifest agree with the files, as a careless producer would."""
    manifest = folder / "manifest.json"

    def update(document: dict) -> None:
        for name in document["files"]:
            document["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()

    edited(manifest, update)


def refusal(folder: Path) -> BundleError:
    with pytest.raises(BundleError) as refused:
        rca.Bundle.load(folder)
    assert refused.value.code == "bundle-error"
    return refused.value


def test_the_shipped_bundle_is_complete_and_says_where_it_comes_from(bundle: Path) -> None:
    loaded = rca.Bundle.load(bundle)
    digest = hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()
    assert loaded.model.sha256 == digest
    assert {"command", "seed", "corpus_sha256", "versions"} <= set(loaded.manifest["provenance"])
    listed = {*loaded.manifest["files"], "manifest.json"}
    assert {path.name for path in bundle.iterdir() if path.is_file()} == listed


def test_a_loaded_bundle_diagnoses_like_the_shipped_one(bundle: Path, make_window) -> None:
    window = make_window(late={5: 0.03})
    shipped, given = rca.diagnose(window), rca.diagnose(window, bundle=bundle)
    assert given.stragglers == shipped.stragglers
    assert given.model == shipped.model


def test_models_are_packed_to_what_a_prediction_reads() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    noise = np.random.default_rng(0)
    rows = noise.normal(size=(400, 5))
    data = lightgbm.Dataset(rows, rows[:, 0] + noise.normal(size=400) > 0)
    text = lightgbm.train({"objective": "binary", "verbose": -1}, data, 20).model_to_string()
    small = gzip.decompress(packed(text)).decode()
    assert len(small) < 0.6 * len(text)
    assert packed(small) == packed(text)
    assert Booster(small).raw(rows) == pytest.approx(Booster(text).raw(rows), abs=1e-3)


def test_a_bundle_of_format_1_is_read(bundle: Path) -> None:
    """Its models are plain text."""
    for path in bundle.glob("*.txt.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()

    def to_format_1(document: dict) -> None:
        document["format"] = 1
        document["files"] = {name.removesuffix(".gz"): "" for name in document["files"]}

    edited(bundle / "manifest.json", to_format_1)
    sign(bundle)
    assert rca.Bundle.load(bundle).alarm is not None


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_model_that_is_cut_off_is_refused(bundle: Path, share: float) -> None:
    path = bundle / "mode.txt.gz"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    sign(bundle)
    assert "mode.txt.gz is cut off" in refusal(bundle).message


def test_a_registered_bundle_says_its_registry_version_in_every_answer(bundle: Path, make_window) -> None:
    sha256 = rca.Bundle.load(bundle).model.sha256
    mark_registered(bundle, 7, sha256)
    diagnosis = rca.diagnose(make_window(), bundle=bundle)
    assert json.loads(diagnosis.to_json())["model"]["registry_version"] == 7
    for page in (diagnosis.to_markdown(), diagnosis.to_html()):
        assert f"({sha256[:12]}, registry version 7)" in page


def test_the_registry_version_of_another_bundle_is_not_taken(bundle: Path) -> None:
    mark_registered(bundle, 7, "0" * 64)
    assert rca.Bundle.load(bundle).model.registry_version is None
    (bundle / "registered.json").write_text("{}")
    assert "registered.json has no version" in refusal(bundle).message


def test_two_registry_versions_of_the_same_files_answer_with_their_own_number(bundle: Path) -> None:
    sha256 = rca.Bundle.load(bundle).model.sha256
    mark_registered(bundle, 7, sha256)
    loaded = LoadedBundles()
    refs = [BundleRef(bundle, sha256), BundleRef(bundle, sha256, 8)]
    assert [loaded.prepare(ref).model.registry_version for ref in refs] == [7, 8]


@pytest.mark.parametrize("name", ["mode.txt.gz", "heads.json", "causal.json"])
def test_one_altered_byte_is_noticed(bundle: Path, name: str) -> None:
    content = bytearray((bundle / name).read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / name).write_bytes(content)
    error = refusal(bundle)
    assert name in error.message
    assert "SHA-256" in error.message
    assert error.hint


@pytest.mark.parametrize("name", ["mode.txt.gz", "heads.json", "causal.json", "manifest.json"])
def test_a_missing_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    assert name in refusal(bundle).message


def test_a_folder_that_is_not_there_is_no_traceback(tmp_path: Path) -> None:
    assert "manifest.json" in refusal(tmp_path / "nowhere").message


@pytest.mark.parametrize("number", [0, 3, "1", None])
def test_another_format_is_refused_and_both_numbers_are_told(bundle: Path, number: object) -> None:
    edited(bundle / "manifest.json", lambda document: document.update(format=number))
    message = refusal(bundle).message
    assert repr(number) in message
    assert "reads 1 and 2" in message


def test_a_foreign_feature_version_says_to_retrain(bundle: Path) -> None:
    edited(bundle / "heads.json", lambda document: document.update(feature_version=999))
    sign(bundle)
    error = refusal(bundle)
    assert "999" in error.message
    assert "rca train" in str(error.hint)


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/hostname", "folder/../../outside.txt"])
def test_a_manifest_cannot_reach_outside_its_folder(bundle: Path, name: str) -> None:
    outside = bundle.parent / "outside.txt"
    outside.write_text("secret")
    digest = hashlib.sha256(b"secret").hexdigest()
    edited(bundle / "manifest.json", lambda document: document["files"].update({name: digest}))
    assert "outside the bundle" in refusal(bundle).message


DAMAGE = {
    "no list of files": lambda document: document.pop("files"),
    "files is a list": lambda document: document.update(files=["mode.txt.gz"]),
    "no model of a head": lambda document: document["files"].pop("mode.txt.gz"),
    "no mechanisms": lambda document: document["files"].pop("causal.json"),
    "no name": lambda document: document.pop("name"),
    "no version": lambda document: document.pop("version"),
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_an_incomplete_manifest_is_refused(bundle: Path, change: Callable[[dict], object]) -> None:
    edited(bundle / "manifest.json", change)
    refusal(bundle)


HEADS_DAMAGE = {
    "a head is missing": lambda document: document["heads"].pop("mode"),
    "no thresholds": lambda document: document.pop("thresholds"),
    "no feature version": lambda document: document.pop("feature_version"),
    "an unknown feature": lambda document: document["heads"]["mode"]["features"].__setitem__(
        0, "phase_of_moon"
    ),
    "too few classes": lambda document: document["heads"]["mode"]["classes"].pop(),
    "calibration without scale": lambda document: document["heads"]["mode"]["calibration"].pop("scale"),
}


@pytest.mark.parametrize("change", HEADS_DAMAGE.values(), ids=HEADS_DAMAGE)
def test_heads_that_contradict_their_models_are_refused(
    bundle: Path, change: Callable[[dict], object]
) -> None:
    edited(bundle / "heads.json", change)
    sign(bundle)
    refusal(bundle)


def drop_doubt(document: dict) -> None:
    for member in ("sets", "familiarity"):
        document.pop(member, None)


def test_a_bundle_that_knows_no_limits_of_its_own_still_answers(bundle: Path, make_window) -> None:
    """Bundles made before there were any."""
    edited(bundle / "heads.json", drop_doubt)
    sign(bundle)
    diagnosis = rca.diagnose(make_window(late={5: 0.05}), bundle=bundle)
    assert diagnosis.failure_mode == "fail_slow"
    assert (diagnosis.set_level, diagnosis.failure_mode_set) == (None, [])
    assert diagnosis.quality.out_of_distribution is None


DOUBT_DAMAGE = {
    "sets without a level": {"sets": {"floors": {}}},
    "sets without floors": {"sets": {"level": 0.9, "floors": {}}},
    "a floor that is no probability": {
        "sets": {"level": 0.9, "floors": {"mode": {"healthy": 7}, "cause": {}, "stop_cause": {}}}
    },
    "familiarity without a shape": {"familiarity": {"ranges": {}}},
}


@pytest.mark.parametrize("change", DOUBT_DAMAGE.values(), ids=DOUBT_DAMAGE)
def test_limits_that_are_malformed_are_refused(bundle: Path, change: dict) -> None:
    edited(bundle / "heads.json", lambda document: document.update(change))
    sign(bundle)
    refusal(bundle)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"null", b"\xff\xfe"])
def test_a_manifest_that_is_no_json_object_is_refused(bundle: Path, content: bytes) -> None:
    (bundle / "manifest.json").write_bytes(content)
    refusal(bundle)


def test_models_of_two_heads_mixed_up_are_refused(bundle: Path) -> None:
    shutil.copy(bundle / "cause.txt.gz", bundle / "mode.txt.gz")
    sign(bundle)
    refusal(bundle)
