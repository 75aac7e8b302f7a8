"""Examples kept between runs: one file per batch, named after a digest of all that the batch depends on.

Nothing has to be invalidated: other code, another seed or another window has another name. Files are NumPy's
``npz`` without pickle. They keep every bit of a feature, NaN included, so a run gives the same corpus digest
with and without the cache.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np

from rca.errors import SourceError
from rca.features import VERSION
from rca.lab.training.corpus import Example
from rca.source_digest import package_folder, source_digest
from rca.sources.labels import Part

#: Number of the file layout.
FORMAT = 1
#: All code of the package that an example depends on. A test follows the calls and compares.
COMPUTED_BY = (
    "arrays.py",
    "features",
    "files.py",
    "lab/evaluation/signal_sets.py",
    "lab/simulation",
    "lab/training/corpus.py",
    "lab/training/crops.py",
    "lab/training/incidents.py",
    "lab/training/simulated.py",
    "lab/training/split.py",
    "lab/training/telemetry_dropout.py",
    "high_segment.py",
    "robust.py",
    "source_digest.py",
    "sources",
    "whatif",
    "window",
    "workers.py",
)
_LIBRARIES = ("numba", "numpy", "pyarrow", "scipy")
_FLAGS = ("real", "unfelt")
_TEXTS = ("mode", "cause", "scope", "group", "part")


def default_folder() -> Path:
    """Where a user's caches belong: ``$XDG_CACHE_HOME/straggler-rca``, mostly ``~/.cache/straggler-rca``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "straggler-rca" / "examples"


def cache_key(kind: str, *facts: object) -> str:
    """Name of the examples that follow from `facts` under today's code and libraries."""
    libraries = [f"{name}=={version(name)}" for name in _LIBRARIES]
    parts = [FORMAT, VERSION, _code_digest(), *libraries, kind, *facts]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


@cache
def _code_digest() -> str:
    return source_digest(computing_files(package_folder()))


def computing_files(root: Path) -> list[Path]:
    """Source files under the package's folder that `COMPUTED_BY` names, sorted."""
    found = []
    for name in COMPUTED_BY:
        place = root / name
        found += list(place.rglob("*.py")) if place.is_dir() else [place]
    return sorted(found)


@dataclass(frozen=True)
class FeatureCache:
    """A folder of examples; several processes may use it at once.

    Attributes
    ----------
    folder : Path
        Made when the first batch is written.
    """

    folder: Path

    def remember(self, key: str, make: Callable[[], list[Example]]) -> list[Example]:
        """What is kept under the key, or else what `make` returns, kept from now on."""
        held = self.read(key)
        if held is None:
            held = make()
            self.write(key, held)
        return held

    def read(self, key: str) -> list[Example] | None:
        """The examples, or None where there are none or the file is damaged."""
        try:
            # Opened here: of a damaged file NumPy would leave its own handle open.
            with self._path(key).open("rb") as file, np.load(file, allow_pickle=False) as held:
                return _examples({name: held[name] for name in held.files})
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
            # Computed again: a damaged cache must not stop a training.
            return None

    def write(self, key: str, examples: Sequence[Example]) -> None:
        """Keep the examples; a reader sees all of them or none.

        Raises
        ------
        SourceError
            If the folder cannot be written.
        """
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{key[:12]}-")
            try:
                with os.fdopen(handle, "wb") as file:
                    np.savez_compressed(file, **_arrays(examples))
                Path(fresh).replace(path)
            finally:
                Path(fresh).unlink(missing_ok=True)
        except OSError as error:
            raise SourceError(
                f"cannot keep features in {self.folder}: {error.strerror or error}",
                hint="--cache names another folder, --no-cache does without",
            ) from error

    def _path(self, key: str) -> Path:
        # Two levels: a folder of ten thousand files is slow to list.
        return self.folder / key[:2] / f"{key}.npz"


def _arrays(examples: Sequence[Example]) -> dict[str, Any]:
    empty = np.empty((0, 0))
    return {
        "window": np.stack([each.window for each in examples]) if examples else empty,
        "rank": np.concatenate([each.rank for each in examples]) if examples else empty,
        "faulty": np.concatenate([each.faulty for each in examples]) if examples else np.empty(0, bool),
        "causes": np.array([cause for each in examples for cause in each.causes], dtype=np.str_),
        "rows": np.array([each.rank.shape[0] for each in examples], dtype=np.int64),
        **{name: np.array([getattr(each, name) for each in examples], dtype=bool) for name in _FLAGS},
        **{name: np.array([getattr(each, name) for each in examples], dtype=np.str_) for name in _TEXTS},
    }


def _examples(held: dict[str, Any]) -> list[Example]:
    ends = np.cumsum(held["rows"])
    spans = zip(ends - held["rows"], ends, strict=True)
    return [
        Example(
            window=held["window"][position],
            rank=held["rank"][begin:end],
            faulty=held["faulty"][begin:end],
            causes=tuple(held["causes"][begin:end].tolist()),
            mode=str(held["mode"][position]),
            cause=str(held["cause"][position]),
            scope=str(held["scope"][position]),
            group=str(held["group"][position]),
            part=cast("Part", str(held["part"][position])),
            **{name: bool(held[name][position]) for name in _FLAGS},
        )
        for position, (begin, end) in enumerate(spans)
    ]
