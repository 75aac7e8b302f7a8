"""Read topology files: the kind is recognised by the content."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import yaml

from rca.errors import InvalidInput, SourceError, TooLarge, cut
from rca.files import read_text
from rca.window.topology.gpu_matrix import is_gpu_matrix, read_gpu_matrix
from rca.window.topology.hardware import HardwareTopology, merged
from rca.window.topology.kubernetes import is_node_list, read_node_list
from rca.window.topology.nccl_graph import is_nccl_topology, read_nccl_topology
from rca.window.topology.own_file import is_own_file, read_own_file
from rca.window.topology.slurm import (
    is_topology_conf,
    is_topology_yaml,
    read_topology_conf,
    read_topology_yaml,
)

#: Largest file, and the largest one in YAML, which takes far longer to read.
MAX_BYTES, MAX_YAML_BYTES = 256 * 1024**2, 8 * 1024**2
_KINDS = (
    "a topology file of ours, Slurm's topology.conf or topology.yaml, kubectl get nodes -o json, "
    "nvidia-smi topo -m, or NCCL_TOPO_DUMP_FILE"
)


def read_topology(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], nodes: Sequence[str] = ()
) -> HardwareTopology:
    """Read topology files and merge them.

    Parameters
    ----------
    nodes : sequence of str
        Nodes of the job. A file about one node, without its name, is about the node that the file is named
        after (``node-3.txt``). If no node of the job has that name, it is about every node.

    Raises
    ------
    SourceError
        If a file cannot be read.
    TooLarge
        If a file is too large.
    InvalidInput
        If a file is of no known kind or wrong, or two files contradict each other.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    return merged(_read(Path(path), nodes) for path in given)


def _read(path: Path, nodes: Sequence[str]) -> HardwareTopology:
    text, source = _text(path), str(path)
    node = _node_of(path, nodes)
    if is_nccl_topology(text):
        return read_nccl_topology(text, source, node)
    if is_gpu_matrix(text):
        return read_gpu_matrix(text, source, node)
    if is_topology_conf(text):
        return read_topology_conf(text, source)
    document = _document(text, source)
    if is_node_list(document):
        return read_node_list(document, source)
    if is_topology_yaml(document):
        return read_topology_yaml(document, source)
    if is_own_file(document):
        return read_own_file(document, source)
    raise _unknown(source)


def _node_of(path: Path, nodes: Sequence[str]) -> str | None:
    """The node of the job that a file is named after; None if there is none."""
    known = {name.split(":")[0].split(".")[0]: name for name in nodes}
    name = path.name
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return known.get(name)


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise SourceError(f"{path} is a folder", hint="give its files, each with --topology")
        if path.stat().st_size > MAX_BYTES:
            raise TooLarge(f"{path} has more than {MAX_BYTES:,} bytes", hint=f"a topology is {_KINDS}")
        return read_text(path)
    except UnicodeDecodeError:
        raise _unknown(str(path)) from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from None


class _Unique(yaml.SafeLoader):
    """The safe loader, but a key that occurs twice in one mapping is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        twice = sorted(key for key, times in counts.items() if times > 1 and key != "<<")
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"{cut(twice[0])} occurs twice", node.start_mark
            )
        return super().construct_mapping(node, deep=deep)


def _document(text: str, source: str) -> object:
    """The JSON or YAML document."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            if not text.lstrip().startswith("["):
                raise InvalidInput(f"{source} is no JSON: {error}", hint="give the whole file") from None
    if len(text) > MAX_YAML_BYTES:
        raise TooLarge(f"{source}: YAML of more than {MAX_YAML_BYTES:,} bytes", hint="write it as JSON")
    try:
        return yaml.load(text, Loader=_Unique)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = cut(" ".join(str(error).split()), 200)
        raise InvalidInput(f"{source} is no YAML: {reason}", hint=f"a topology is {_KINDS}") from None


def _unknown(source: str) -> InvalidInput:
    return InvalidInput(f"{source} is no topology of a known kind", hint=f"give {_KINDS}")
