"""A bundle that is not exactly what its manifest says is refused, before any of it is used."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import rca
import rca_models
from rca.errors import BundleError

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


@pytest.mark.parametrize("name", ["mode.txt", "heads.json", "causal.json"])
def test_one_altered_byte_is_noticed(bundle: Path, name: str) -> None:
    content = bytearray((bundle / name).read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / name).write_bytes(content)
    error = refusal(bundle)
    assert name in error.message
    assert "SHA-256" in error.message
    assert error.hint


@pytest.mark.parametrize("name", ["mode.txt", "heads.json", "causal.json", "manifest.json"])
def test_a_missing_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    assert name in refusal(bundle).message


def test_a_folder_that_is_not_there_is_no_traceback(tmp_path: Path) -> None:
    assert "manifest.json" in refusal(tmp_path / "nowhere").message


@pytest.mark.parametrize("number", [0, 2, "1", None])
def test_another_format_is_refused_and_both_numbers_are_told(bundle: Path, number: object) -> None:
    edited(bundle / "manifest.json", lambda document: document.update(format=number))
    message = refusal(bundle).message
    assert repr(number) in message
    assert "reads 1" in message


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
    "files is a list": lambda document: document.update(files=["mode.txt"]),
    "no model of a head": lambda document: document["files"].pop("mode.txt"),
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
    shutil.copy(bundle / "cause.txt", bundle / "mode.txt")
    sign(bundle)
    refusal(bundle)
