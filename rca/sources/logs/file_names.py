"""What the names and folders of logs say about the process that wrote them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rca.sources.logs.line_labels import Writer

_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_TASK = re.compile(r"(?:task|worker|proc|log|stderr|stdout)[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d{1,6})$")
#: A folder of a node: with a number, and none of an attempt or a run.
_NODE = re.compile(
    r"(?!(?:rank|attempt|run|job|try|version|exp|epoch|step|v)[-_.]?\d)(?=\D{0,80}\d)[A-Za-z][\w.-]{0,120}$"
)


def writers_of_files(paths: Sequence[Path]) -> dict[Path, Writer]:
    """Rank, task, local rank and node that names and folders give, by file.

    A number that is not called a rank is that of a task only if the files are numbered from 0 on. torchrun
    numbers its folders within a node. Folders are nodes if the files are in several ones.
    """
    tasks = {path: number for path in paths if (number := _found(_TASK, path.name)) is not None}
    numbered = len(paths) > 1 and set(tasks.values()) == set(range(len(paths)))
    nodes = _folders_of_nodes(paths)
    return {
        path: Writer(
            _found(_RANK, path.name),
            tasks.get(path) if numbered else None,
            _found(_NUMBER, path.parent.name) if path.name.startswith("std") else None,
            nodes.get(path),
        )
        for path in paths
    }


def _found(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.search(name)
    return None if found is None else int(found[1])


def _folders_of_nodes(paths: Sequence[Path]) -> dict[Path, str]:
    """The node of each file whose first folder of its own is called like one; empty for one folder."""
    if len(paths) < 2:
        return {}
    common = os.path.commonpath([path.parent for path in paths])
    first = {path: path.relative_to(common).parts[0] for path in paths if path.parent != Path(common)}
    found = {path: name for path, name in first.items() if _NODE.match(name) is not None}
    return found if len(set(found.values())) > 1 else {}
