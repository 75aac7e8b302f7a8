"""Labelled windows, collections of them, and the parts of a collection."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rca.errors import InvalidInput, RcaError, SourceError, cut
from rca.files import read_file, replace_file
from rca.sources.read import read_window
from rca.window.causes import FailureMode, Pattern, StragglerType
from rca.window.encodings import directory
from rca.window.job import Job
from rca.window.window import Window

LABEL_FILE = directory.LABEL_FILE
MANIFEST_FILE = "manifest.json"
Part = Literal["train", "calibration", "validation", "test"]

Model = TypeVar("Model", bound=BaseModel)
Read = TypeVar("Read")


class _Record(BaseModel):
    # Further members of producers (``visible``, ``impact``, ``accepted``) are kept.
    model_config = ConfigDict(extra="allow", frozen=True)


class LabelledCause(_Record):
    """One true cause.

    Attributes
    ----------
    cause : str
        Id from the cause catalogue.
    ranks, nodes : tuple
        Where; empty if the label does not say.
    first_step, last_step : int or None
        When, both inclusive; None if the label does not say.
    severity : float or None
        From 0 to 1, as the producer judges.
    """

    cause: str = Field(min_length=1)
    ranks: tuple[Annotated[int, Field(ge=0)], ...] = ()
    nodes: tuple[str, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    severity: Annotated[float, Field(ge=0, le=1)] | None = None


class WindowLabel(_Record):
    """The truth about one window (``label.json``, format 1)."""

    format: Literal[1] = 1
    failure_mode: FailureMode
    straggler_type: StragglerType | None = None
    pattern: Pattern | None = None
    causes: tuple[LabelledCause, ...] = ()
    source: str = "incident"
    notes: str = ""


class _Entry(_Record):
    id: str = Field(min_length=1)
    path: str = Field(min_length=1)
    earlier: str | None = None


class _Manifest(_Record):
    format: Literal[1] = 1
    windows: tuple[_Entry, ...]


def unfelt(label: WindowLabel) -> bool:
    """Whether a fault was injected that cost too little to count as one."""
    known = label.model_extra or {}
    # The simulator records an impact only for injected faults; other producers measure noise as well.
    done = known.get("injected") or (label.source == "simulation" and known.get("impact"))
    return label.failure_mode == "healthy" and bool(done)


def accepted(true: LabelledCause) -> set[str]:
    """Answers that count as right: the cause, and those that look the same in its signals."""
    return {true.cause, *(true.model_extra or {}).get("accepted", ())}


@dataclass(frozen=True)
class CollectionEntry:
    """One labelled window of a collection, read on demand.

    Attributes
    ----------
    path : Path
        The window's directory.
    summary : dict
        The entry's other members in the manifest.
    earlier : Path or None
        Directory of the collection's window that this one is compared with.
    """

    id: str
    path: Path
    summary: dict[str, Any]
    earlier: Path | None = None

    def read_window(self) -> Window:
        """The window, validated; an error names the entry."""
        return self._read(self.path)

    def read_earlier(self) -> Window | None:
        """The earlier window of its job that it is compared with, if the manifest names one."""
        return None if self.earlier is None else self._read(self.earlier)

    def read_label(self) -> WindowLabel:
        """The window's label."""
        return self._naming_the_window(read_label, self.path)

    def _read(self, path: Path) -> Window:
        return self._naming_the_window(read_window, path)

    def _naming_the_window(self, read: Callable[[Path], Read], path: Path) -> Read:
        if not path.is_dir():
            raise SourceError(
                f"window {self.id!r}: {path}: no such directory",
                hint="if the manifest lists archives, unpack the collection with `rca testbed unpack`",
            )
        try:
            return read(path)
        except RcaError as error:
            raise error.restated(f"window {self.id!r}: {error.message}") from error


@dataclass(frozen=True)
class Collection:
    """A folder of labelled windows with a ``manifest.json``.

    Attributes
    ----------
    properties : dict
        The manifest's other members (seed, software versions, ...).
    """

    path: Path
    entries: tuple[CollectionEntry, ...]
    properties: dict[str, Any]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[CollectionEntry]:
        return iter(self.entries)


def located(label: WindowLabel, job: Job) -> WindowLabel:
    """Complete each cause: ranks if only nodes are given, nodes if only ranks are given."""
    topology = job.topology
    causes: list[LabelledCause] = []
    for each in label.causes:
        ranks_of_nodes = [rank for rank in range(job.world_size) if _on(topology, rank, each.nodes)]
        ranks = each.ranks or tuple(ranks_of_nodes)
        nodes = each.nodes or tuple(topology.nodes_of(list(ranks)) if ranks else ())
        causes.append(each.model_copy(update={"ranks": ranks, "nodes": nodes}))
    return label.model_copy(update={"causes": tuple(causes)})


def read_label(path: str | PathLike[str]) -> WindowLabel:
    """Read a label, from its file or from the labelled window's directory.

    Raises
    ------
    SourceError
        If there is no such file.
    InvalidInput
        If it is not a label of format 1.
    """
    file = Path(path)
    return _parsed(file / LABEL_FILE if file.is_dir() else file, WindowLabel)


def read_collection(path: str | PathLike[str]) -> Collection:
    """Read a collection's manifest; windows and labels are read on demand.

    Raises
    ------
    SourceError
        If there is no manifest.
    InvalidInput
        If the manifest is not of format 1, repeats an id, or points outside the collection. Also if it names
        an earlier window that it does not list.
    """
    folder = Path(path)
    manifest = _parsed(folder / MANIFEST_FILE, _Manifest)
    ids = [entry.id for entry in manifest.windows]
    if len(set(ids)) < len(ids):
        repeated = next(one for one in ids if ids.count(one) > 1)
        raise InvalidInput(f"{folder / MANIFEST_FILE}: window {repeated!r} is listed more than once")
    places = {entry.id: _inside(folder, entry.path) for entry in manifest.windows}
    for entry in manifest.windows:
        if entry.earlier is not None and (entry.earlier not in places or entry.earlier == entry.id):
            raise InvalidInput(
                f"{folder / MANIFEST_FILE}: the earlier window of {entry.id!r} is "
                f"{entry.earlier!r}, which is no other window of the list"
            )
    entries = tuple(
        CollectionEntry(
            entry.id,
            places[entry.id],
            entry.model_extra or {},
            None if entry.earlier is None else places[entry.earlier],
        )
        for entry in manifest.windows
    )
    return Collection(folder, entries, manifest.model_extra or {})


def hashed_part(group: str, shares: Mapping[Part, float]) -> Part:
    """The part of a group by a hash of its name: the same in every run and on every machine.

    Parameters
    ----------
    group : str
        Everything that comes from one scenario, and must not be split.
    shares : mapping of part to float
        In order; their sum is 1.
    """
    draw = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") / 2**64
    parts = list(shares)
    ceilings = accumulate(shares.values())
    # The sum of rounded shares may be slightly below 1.
    return next((part for part, ceiling in zip(parts, ceilings, strict=True) if draw < ceiling), parts[-1])


def write_manifest(
    path: str | PathLike[str], windows: Sequence[Mapping[str, Any]], properties: Mapping[str, Any]
) -> None:
    """Write a collection's manifest atomically.

    Parameters
    ----------
    windows : sequence of mapping
        At least ``id`` and ``path`` of each window.
    properties : mapping
        The manifest's other members.
    """
    content = {"format": 1, **properties, "windows": list(windows)}
    replace_file(Path(path) / MANIFEST_FILE, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def write_labelled(window: Window, label: WindowLabel, path: str | PathLike[str]) -> None:
    """Write a window's directory and its label atomically."""
    content = orjson.dumps(label.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
    directory.write(window.job, window.tables, path, attachments={LABEL_FILE: content})


def _on(topology: Any, rank: int, nodes: Iterable[str]) -> bool:
    index = int(topology.node[rank])
    return index >= 0 and topology.node_names[index] in nodes


def _inside(folder: Path, relative: str) -> Path:
    path = folder / relative
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        path.exists()  # Raises if the file system cannot have such a path.
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(
            f"{folder / MANIFEST_FILE}: {cut(relative)!r} cannot be a path: {reason}"
        ) from None
    if not inside:
        raise InvalidInput(f"{folder / MANIFEST_FILE}: {cut(relative)!r} is outside the collection")
    return path


def _parsed(path: Path, model: type[Model]) -> Model:
    try:
        return model.model_validate(orjson.loads(read_file(path)))
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{path}: is not JSON: {error.msg} (byte {error.pos})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "document"
        raise InvalidInput(f"{path}: {place}: {first['msg']}") from None
