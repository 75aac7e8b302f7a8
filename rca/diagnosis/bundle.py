"""The model bundle: LightGBM text and JSON under a SHA-256 manifest. No pickle, so loading runs no code.

Layout of a bundle folder, format 2::

    manifest.json     format, name, version, provenance, and the SHA-256 of every other file
    heads.json        per head: feature names, classes, calibration; thresholds; optionally what the bundle
                      knows of its limits: prediction sets, familiar ranges, usual answers, and the
                      alarm of latenesses
    <head>.txt.gz     one LightGBM model per head, and one of the alarm where there is such an alarm
    causal.json       mechanisms, and how the data tested them
    causal.md         the same for people (optional)
    registered.json   its version in the registry, which exists only after the manifest does; optional, and
                      ignored if it is of another manifest

Format 1 has the models as ``<head>.txt``.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import orjson

from rca.causal.mechanisms import Mechanisms
from rca.classify.classifier import HEADS, Classifier
from rca.classify.head import Head
from rca.diagnosis.alarm import ALARM_NUMBERS
from rca.diagnosis.result import ModelVersion
from rca.errors import BundleError
from rca.files import read_file, replace_file

FORMAT = 2
#: Models are small: a file that holds more is none.
MAX_MODEL_BYTES = 1 << 26
_GZIP = 31
#: Member of ``heads.json`` and of the manifest's provenance for the alarm of latenesses.
ALARM = "alarm"
#: File with the version of a registered bundle.
REGISTERED_FILE = "registered.json"


@dataclass(frozen=True)
class Bundle:
    """Everything learned that a diagnosis needs, verified against its manifest.

    `alarm` is from `rca.diagnosis.alarm`; bundles of earlier versions have none.
    """

    classifier: Classifier
    mechanisms: Mechanisms
    model: ModelVersion
    manifest: dict[str, Any]
    alarm: Head | None = None

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Bundle:
        """Read and verify a bundle folder.

        Raises
        ------
        BundleError
            Missing or altered file, unknown format, or a model that contradicts its description.
        """
        folder = Path(path)
        manifest_bytes = _read(folder / "manifest.json")
        manifest = _json(manifest_bytes, "manifest.json")
        if manifest.get("format") not in (1, FORMAT):
            raise BundleError(
                f"bundle format {manifest.get('format')!r} in {folder}, this version reads 1 and {FORMAT}"
            )
        if not isinstance(manifest.get("files"), dict):
            raise BundleError(f"{folder} is no bundle: its manifest.json lists no files with their SHA-256")
        try:
            contents = {name: _verified(folder, name, digest) for name, digest in manifest["files"].items()}
            texts = {name: _model(contents, name) for name in HEADS}
            heads = _json(contents["heads.json"], "heads.json")
            classifier = Classifier.load(heads, texts)
            alarm = None
            if ALARM in heads["heads"]:
                alarm = Head.load(ALARM, heads["heads"][ALARM], _model(contents, ALARM), ALARM_NUMBERS)
            mechanisms = Mechanisms.from_document(_json(contents["causal.json"], "causal.json"))
            name, version = str(manifest["name"]), str(manifest["version"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BundleError(f"the bundle in {folder} is incomplete or malformed: {error!r}") from error
        digest = hashlib.sha256(manifest_bytes).hexdigest()
        number = _registry_version(folder / REGISTERED_FILE, digest)
        model = ModelVersion(name=name, version=version, sha256=digest, registry_version=number)
        return cls(classifier, mechanisms, model, manifest, alarm)

    def registered_as(self, number: int) -> Bundle:
        """The same bundle with its version in the registry."""
        return replace(self, model=self.model.model_copy(update={"registry_version": number}))


def shipped_folder() -> Path:
    """Folder of the bundle shipped with the package."""
    try:
        return Path(str(files("rca_models") / "baseline"))
    except (ModuleNotFoundError, NotADirectoryError) as error:
        raise BundleError(
            "the package rca_models with the shipped bundle is not installed",
            hint="reinstall straggler-rca, or name a bundle of your own",
        ) from error


@lru_cache(maxsize=1)
def baseline() -> Bundle:
    """The bundle shipped with the package, loaded once."""
    return Bundle.load(shipped_folder())


def mark_registered(folder: Path, number: int, sha256: str) -> None:
    """Write the version of a bundle in the registry beside its files.

    Parameters
    ----------
    sha256 : str
        Of the manifest that is registered with this number.
    """
    replace_file(folder / REGISTERED_FILE, orjson.dumps({"sha256": sha256, "version": number}) + b"\n")


def _registry_version(file: Path, sha256: str) -> int | None:
    if not file.exists():
        return None
    described = _json(_read(file), REGISTERED_FILE)
    number = described.get("version")
    if not isinstance(number, int):
        raise BundleError(f"{file} has no version", hint="delete it, or `rca models fetch` the bundle again")
    return number if described.get("sha256") == sha256 else None


def _verified(folder: Path, name: str, digest: str) -> bytes:
    if Path(name).name != name:
        raise BundleError(f"the manifest names a file outside the bundle: {name!r}")
    content = _read(folder / name)
    if hashlib.sha256(content).hexdigest() != digest:
        raise BundleError(
            f"{folder / name} does not match its SHA-256 in the manifest",
            hint="the bundle was altered or copied incompletely; fetch it again",
        )
    return content


def _model(contents: dict[str, bytes], name: str) -> str:
    """The LightGBM text of a head."""
    packed = contents.get(f"{name}.txt.gz")
    if packed is None:
        return contents[f"{name}.txt"].decode()
    reader = zlib.decompressobj(_GZIP)
    try:
        text = reader.decompress(packed, MAX_MODEL_BYTES)
    except zlib.error as error:
        raise BundleError(f"{name}.txt.gz is damaged: {error}") from error
    if not reader.eof:
        raise BundleError(f"{name}.txt.gz is cut off, or holds more than {MAX_MODEL_BYTES:,} bytes")
    return text.decode()


def _read(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error


def _json(content: bytes, name: str) -> dict[str, Any]:
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise BundleError(f"{name} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BundleError(f"{name} is not a JSON object")
    return document
