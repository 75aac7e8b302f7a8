"""The matrix of ``nvidia-smi topo -m``: PCIe switch and network adapter of each GPU of a node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rca.errors import InvalidInput
from rca.window.topology.hardware import Facts, HardwarePlace, HardwareTopology

_GPU, _NIC = (
    re.compile(r"GPU(\d{1,4})"),
    re.compile(r"NIC(\d{1,4})|(?:mlx|bnxt_re|rdma|ib|roce|efa|irdma)\w*"),
)
_HEADER = re.compile(r"^[ \t]*GPU\d+[ \t]+(?:GPU\d+|NIC\d+|mlx5_\d+|CPU[ \t])", re.MULTILINE)
_LEGEND = re.compile(r"^\s*(NIC\d+)\s*[:=]\s*(\S+)\s*$", re.MULTILINE)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
#: Connections by distance, nearest first. The first two do not leave the PCIe switch.
_NEAREST = ("PIX", "PXB", "PHB", "NODE", "SYS")
_ONE_SWITCH = frozenset({"PIX", "PXB"})
_CELL = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|SOC|NV\d+|N/A")


def is_gpu_matrix(text: str) -> bool:
    """Whether the text has the header of such a matrix."""
    return _HEADER.search(_ESCAPE.sub("", text)) is not None


def read_gpu_matrix(text: str, source: str, node: str | None) -> HardwareTopology:
    """PCIe switch and adapter of each GPU.

    GPUs and adapters at PIX or PXB are behind one PCIe switch. A GPU's adapter is the nearest one. It is
    unknown where several are equally near.

    Parameters
    ----------
    node : str or None
        The node it is about; None for every node.

    Raises
    ------
    InvalidInput
        If a row does not fit the header.
    """
    text = _ESCAPE.sub("", text)
    columns, rows = _table(text, source)
    adapters = dict(_LEGEND.findall(text))
    facts = Facts(source)
    switch = _switches(columns, rows)
    for device, cells in rows.items():
        gpu = _GPU.fullmatch(device)
        if gpu is None:
            continue
        place = HardwarePlace(node, int(gpu[1]))
        facts.add(place, "pcie_switch", switch.get(device))
        near = _nearest(columns, cells)
        facts.add(place, "nic", None if near is None else adapters.get(near, near))
    return facts.topology()


def _table(text: str, source: str) -> tuple[list[str], dict[str, list[str]]]:
    """Names of the columns that are devices, and the cells of each row."""
    lines = text.splitlines()
    top = next(number for number, line in enumerate(lines) if _HEADER.match(line))
    columns: list[str] = []
    for name in lines[top].split():
        if not (_GPU.fullmatch(name) or _NIC.fullmatch(name)):
            break
        columns.append(name)
    rows: dict[str, list[str]] = {}
    for line in lines[top + 1 :]:
        cells = line.split()
        if not cells or cells[0] not in columns:
            if rows:
                break
            continue
        values = cells[1 : 1 + len(columns)]
        if len(values) < len(columns) or not all(_CELL.fullmatch(cell) for cell in values):
            raise InvalidInput(
                f"{source}: the row of {cells[0]} does not fit the {len(columns)} devices of the header",
                hint="keep the lines of `nvidia-smi topo -m` whole",
            )
        rows[cells[0]] = values
    missing = [name for name in columns if _GPU.fullmatch(name) and name not in rows]
    if missing:
        raise InvalidInput(f"{source}: the matrix has no row of {missing[0]}", hint="give the whole output")
    return columns, rows


def _switches(columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """PCIe switch of each device behind one, named after its first device."""
    switch = {name: name for name in columns}
    for row, cells in rows.items():
        for column, cell in zip(columns, cells, strict=True):
            if cell in _ONE_SWITCH:
                one, other = sorted((switch[row], switch[column]), key=columns.index)
                switch = {name: one if held == other else held for name, held in switch.items()}
    members = list(switch.values())
    return {name: f"pcie-{held}" for name, held in switch.items() if members.count(held) > 1}


def _nearest(columns: Sequence[str], cells: Sequence[str]) -> str | None:
    """The one adapter at the smallest distance; None if there are several, or none."""
    adapters = [(name, cell) for name, cell in zip(columns, cells, strict=True) if _NIC.fullmatch(name)]
    for distance in _NEAREST:
        near = [name for name, cell in adapters if cell == distance]
        if near:
            return near[0] if len(near) == 1 else None
    return None
