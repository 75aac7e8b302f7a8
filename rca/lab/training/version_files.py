"""The files of a registered version: checked before the download and after it.

Whatever the store holds may be damaged, or written by another program. What cannot be read or is too large
makes a `BundleError`, which rejects the version. A store or a disk that fails does not.
"""

from __future__ import annotations

import hashlib
import posixpath
from pathlib import Path
from typing import Any

import yaml

from rca.errors import BundleError, SourceError
from rca.lab.training.tracking import import_pyfunc

#: Its description by MLflow, which names the folder of the bundle.
DESCRIPTION = "MLmodel"
#: The shipped bundle has 20 MB in 12 files.
_MAX_BYTES, _MAX_FILES = 256 << 20, 256
_MAX_DESCRIPTION_BYTES = 64 << 10
#: Codes of MLflow's errors that are about the files, such as a link that leads out of their folder.
_OF_THE_VERSION = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")
#: Largest artifact of a run that is read as text, such as a model card.
_MAX_TEXT_BYTES = 16 << 20


def download(source: str, uri: str, folder: Path, sha256: str) -> Path:
    """Copy the files of a version below `folder`, and give the folder of its bundle.

    Parameters
    ----------
    source : str
        URI of the files.
    uri : str
        MLflow tracking URI.
    sha256 : str
        Of the bundle's manifest, which has the digests of all other files.

    Raises
    ------
    BundleError
        If files are missing, unreadable or too large, or if the manifest has another digest.
    SourceError
        If the disk cannot be written or read.
    """
    mlflow = import_pyfunc()
    try:
        _check_listed(mlflow, source, uri)
        place = mlflow.artifacts.download_artifacts(
            artifact_uri=source, dst_path=str(folder), tracking_uri=uri
        )
        bundle = _bundle_in(Path(place))
        manifest = bundle / "manifest.json"
        if not manifest.is_file() or hashlib.sha256(manifest.read_bytes()).hexdigest() != sha256:
            raise BundleError("its bundle is not the one that was registered")
    except mlflow.exceptions.MlflowException as error:
        if error.error_code not in _OF_THE_VERSION:
            raise
        raise BundleError(f"MLflow refuses its files: {error.error_code}") from error
    except OSError as error:
        raise SourceError(f"its files cannot be copied: {error.strerror or type(error).__name__}") from error
    return bundle


def read_text(client: Any, run_id: str, name: str) -> str:
    """Text of an artifact of a run; "" if there is none.

    Raises
    ------
    BundleError
        If it is a folder, too large or not UTF-8.
    """
    folder = name.rpartition("/")[0] or None
    found = [each for each in client.list_artifacts(run_id, folder) if each.path == name]
    if not found:
        return ""
    if found[0].is_dir or (found[0].file_size or 0) > _MAX_TEXT_BYTES:
        raise BundleError(f"the artifact {name} is a folder or too large")
    try:
        return Path(client.download_artifacts(run_id, name)).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BundleError(f"the artifact {name} is not UTF-8") from None


def _check_listed(mlflow: Any, source: str, uri: str) -> None:
    """Refuse a version whose files are too many or too large, before a download fills the disk."""
    files: dict[str, int] = {}
    folders, n_folders = [""], 0
    while folders and len(files) + n_folders <= _MAX_FILES:
        n_folders += 1
        folder = folders.pop()
        for each in mlflow.artifacts.list_artifacts(
            artifact_uri=posixpath.join(source, folder), tracking_uri=uri
        ):
            name = posixpath.join(folder, posixpath.basename(each.path))
            if each.is_dir:
                folders.append(name)
            else:
                # Some stores do not say the size.
                files[name] = int(each.file_size or 0)
    if folders or len(files) > _MAX_FILES:
        raise BundleError(f"it has more than {_MAX_FILES} files")
    if sum(files.values()) > _MAX_BYTES:
        raise BundleError(f"its files have more than {_MAX_BYTES >> 20} MiB")
    if DESCRIPTION not in files:
        raise BundleError(f"it has no file {DESCRIPTION}")
    if files[DESCRIPTION] > _MAX_DESCRIPTION_BYTES:
        raise BundleError(f"its {DESCRIPTION} has more than {_MAX_DESCRIPTION_BYTES >> 10} KiB")


def _bundle_in(place: Path) -> Path:
    """The folder of the bundle, which must be inside the version."""
    try:
        described = yaml.safe_load((place / DESCRIPTION).read_bytes())
        bundle: Path = place / described["flavors"]["python_function"]["data"]
        inside = bundle.resolve().is_relative_to(place.resolve())
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BundleError(f"its {DESCRIPTION} cannot be read: {type(error).__name__}") from None
    if not inside:
        raise BundleError(f"its {DESCRIPTION} names a folder outside the version")
    return bundle
