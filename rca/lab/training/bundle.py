"""Write a bundle folder that `rca.diagnosis.bundle` reads: byte-identical for the same fit."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from rca.causal.mechanisms import Mechanisms
from rca.classify.classifier import HEADS
from rca.diagnosis.bundle import ALARM, FORMAT, Bundle
from rca.errors import SourceError
from rca.features import VERSION
from rca.files import replace_folder
from rca.lab.training.causal_page import causal_page
from rca.lab.training.classifier_fit import Learned
from rca.lab.training.heads import FittedHead

#: Default name of a bundle.
NAME = "baseline"
MANIFEST = "manifest.json"
#: Statistics of the training in a tree, and significant digits of what a prediction reads.
_UNREAD = frozenset(
    {"split_gain", "leaf_weight", "leaf_count", "internal_value", "internal_weight", "internal_count"}
)
_DIGITS = {"threshold": 9, "leaf_value": 5}


def write_bundle(
    folder: Path,
    learned: Learned,
    mechanisms: Mechanisms,
    provenance: dict[str, Any],
    *,
    name: str = NAME,
    version: str,
) -> str:
    """Write all files to a fresh folder and move it into place; return the manifest's SHA-256.

    Parameters
    ----------
    folder : Path
        Replaced if it holds a bundle. The old bundle stays until the new one is complete.
    provenance : dict
        Seeds, corpus digest and library versions. Without times and paths, a rerun on the same kind of
        processor gives the same digest.
    """
    document = {
        "feature_version": VERSION,
        "heads": {key: head.entry() for key, head in learned.heads.items()},
        "thresholds": learned.thresholds,
        **learned.doubt,
    }
    contents = {f"{key}.txt.gz": packed(head.text) for key, head in learned.heads.items()}
    contents["heads.json"] = _json(document)
    contents["causal.json"] = _json(mechanisms.to_document())
    if mechanisms.report:
        contents["causal.md"] = causal_page(mechanisms).encode()
    described = {"format": FORMAT, "name": name, "version": version, "provenance": provenance}
    return _replaced(folder, contents, described)


def with_alarm(bundle: Path, folder: Path, alarm: FittedHead, provenance: dict[str, Any]) -> str:
    """Write a bundle with this alarm and every other head in use as before; return the manifest's SHA-256.

    Parameters
    ----------
    bundle, folder : Path
        The bundle to take, and the folder to write, which may be the same; see `write_bundle`.
    provenance : dict
        Of the alarm.
    """
    taken = Bundle.load(bundle)
    described = dict(taken.manifest) | {"format": FORMAT}
    names = [name for name in described.pop("files") if Path(name).suffix in (".json", ".md")]
    contents = {name: (bundle / name).read_bytes() for name in names}
    heads = orjson.loads(contents["heads.json"])
    heads["heads"] = {name: heads["heads"][name] for name in HEADS} | {ALARM: alarm.entry()}
    texts = {name: head.booster.text for name, head in taken.classifier.heads.items()} | {ALARM: alarm.text}
    contents["heads.json"] = _json(heads)
    contents |= {f"{name}.txt.gz": packed(text) for name, text in texts.items()}
    described["provenance"] = {**described["provenance"], ALARM: provenance}
    return _replaced(folder, contents, described)


def packed(text: str) -> bytes:
    """A LightGBM text with only what a prediction reads, in fewer digits, as gzip.

    Scores change by less than 1e-4: thresholds keep nine digits, and values of leaves five.
    """
    begin, end = text.index("Tree=0\n"), text.index("end of trees")
    blocks = re.split(r"(?=^Tree=\d+\n)", text[begin:end], flags=re.MULTILINE)[1:]
    trees = ["\n".join(_read_lines(block)) for block in blocks]
    sizes = " ".join(str(len(tree)) for tree in trees)
    header = re.sub(r"^tree_sizes=.*$", f"tree_sizes={sizes}", text[:begin], flags=re.MULTILINE)
    return gzip.compress((header + "".join(trees) + text[end:]).encode(), compresslevel=9, mtime=0)


def _read_lines(tree: str) -> Iterator[str]:
    """The lines of a tree that a prediction reads."""
    for line in tree.split("\n"):
        name, _, values = line.partition("=")
        if name in _DIGITS:
            yield f"{name}=" + " ".join(f"{float(value):.{_DIGITS[name]}g}" for value in values.split())
        elif name not in _UNREAD:
            yield line


def _replaced(folder: Path, contents: dict[str, bytes], described: dict[str, Any]) -> str:
    """Put a bundle of these files in place of the old one; return the SHA-256 of its manifest."""
    files = {key: hashlib.sha256(value).hexdigest() for key, value in sorted(contents.items())}
    manifest = _json({**described, "files": files})
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        for key, value in (contents | {MANIFEST: manifest}).items():
            (fresh / key).write_bytes(value)
        fresh.chmod(0o755)
        refuse_to_replace(folder)
        replace_folder(folder, fresh)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return hashlib.sha256(manifest).hexdigest()


def refuse_to_replace(folder: Path) -> None:
    """Refuse to replace anything that is not a bundle.

    Raises
    ------
    SourceError
        If `folder` is a file, or a folder with something else in it.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise SourceError(f"{folder}: exists and is not a directory")
    if any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise SourceError(
            f"{folder}: is not a bundle, so it is not replaced",
            hint="name a folder that does not exist, is empty or holds a bundle",
        )


def _json(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"
