"""NCCL's topology file (``NCCL_TOPO_DUMP_FILE``): PCI address, PCIe switch and adapter of each GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from rca.errors import InvalidInput
from rca.window.topology.hardware import Facts, HardwarePlace, HardwareTopology

_ROOT = re.compile(r"<system\b")
_DECLARATION = re.compile(r"<!(DOCTYPE|ENTITY)", re.IGNORECASE)
#: PCI class of a bridge: a switch's upstream port is one.
_BRIDGE = "0x0604"
#: A switch within a switch is rarely deeper.
MAX_DEPTH = 64

Path = tuple[ElementTree.Element, ...]


def is_nccl_topology(text: str) -> bool:
    """Whether the text is such a file."""
    return text.lstrip().startswith("<") and _ROOT.search(text) is not None


def read_nccl_topology(text: str, source: str, node: str | None) -> HardwareTopology:
    """PCI address, PCIe switch and adapter of each GPU.

    The PCIe switch is the outermost bridge above the GPU. A GPU's adapter is the one with which it shares
    the most bridges. It is unknown where several do.

    Parameters
    ----------
    node : str or None
        The node it is about; None for every node.

    Raises
    ------
    InvalidInput
        If it is no XML, or has no GPU.
    """
    if _DECLARATION.search(text):
        raise InvalidInput(f"{source} declares a document type", hint="NCCL writes none: give its own file")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314  # Without declarations nothing expands.
    except ElementTree.ParseError as error:
        raise InvalidInput(f"{source} is no XML: {error}", hint="give the whole file") from None
    devices = list(_devices(root, source))
    adapters = [path for path in devices if path[-1].tag == "net"]
    facts = Facts(source)
    found = 0
    for path in devices:
        index = path[-1].get("dev", "")
        if path[-1].tag != "gpu" or not (index.isascii() and index.isdigit() and len(index) < 5):
            continue
        found += 1
        place = HardwarePlace(node, int(index))
        bridges = _bridges(path)
        facts.add(place, "pci_address", path[-2].get("busid") if len(path) > 1 else None)
        facts.add(place, "pcie_switch", bridges[0].get("busid") if bridges else None)
        near = _nearest(path, adapters)
        facts.add(place, "nic", None if near is None else near[-1].get("name"))
    if not found:
        raise InvalidInput(f"{source} has no GPU", hint="give the file that NCCL_TOPO_DUMP_FILE names")
    return facts.topology()


def _devices(root: ElementTree.Element, source: str) -> Iterator[Path]:
    """GPUs and adapters, each with the elements above it."""
    stack: list[Path] = [(root,)]
    while stack:
        path = stack.pop()
        if len(path) > MAX_DEPTH:
            raise InvalidInput(f"{source}: its elements are nested too deeply", hint=f"at most {MAX_DEPTH}")
        if path[-1].tag in ("gpu", "net"):
            yield path
        stack += [(*path, child) for child in reversed(path[-1])]


def _bridges(path: Path) -> Path:
    """The PCI bridges above a device, the outermost first."""
    return tuple(
        each for each in path[:-1] if each.tag == "pci" and (each.get("class") or "").startswith(_BRIDGE)
    )


def _nearest(gpu: Path, adapters: list[Path]) -> Path | None:
    """The adapter with the most elements above it in common; None if there are several, or none."""
    shared = [sum(one is other for one, other in zip(gpu, each, strict=False)) for each in adapters]
    best = [each for each, depth in zip(adapters, shared, strict=True) if depth == max(shared)]
    names = {each[-1].get("name") for each in best}
    return best[0] if len(names) == 1 else None
