"""Exporters see machines, never what was done to them: a label must not leak into a signal."""

from __future__ import annotations

import ast
from pathlib import Path

import rca.lab.simulation.exporters as exporters
from tests.for_each import for_each

FILES = sorted(Path(exporters.__file__).parent.glob("*.py"))
#: Names of faults: in a scenario, in the catalogue of faults, in a label.
FORBIDDEN = {"faults", "severity", "cause", "causes", "label"}


@for_each("path", FILES, ids=[path.stem for path in FILES])
def test_no_exporter_reads_a_fault(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert read & FORBIDDEN == set()
