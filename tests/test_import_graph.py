"""The import graph of our packages has no cycle, imports inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.for_each import for_each

ROOT = Path(__file__).resolve().parent.parent
#: Package -> the folder that holds it.
PACKAGES = {"rca": ROOT, "rca_api": ROOT / "api", "rca_models": ROOT / "models"}
#: Imports inside functions that may close a cycle, each with its reason.
ALLOWED = {
    ("rca.diagnosis.result", "rca.runbook"): "`Diagnosis.to_markdown` and the like render on demand",
}

Graph = Mapping[str, frozenset[str]]


def modules_of(packages: Mapping[str, Path]) -> dict[str, Path]:
    """Module name -> file, for every module of the packages."""
    found: dict[str, Path] = {}
    for package, folder in packages.items():
        for file in sorted((folder / package).rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def import_graph(files: Mapping[str, Path]) -> Graph:
    """Module -> the modules among `files` that its source imports, at its top or inside functions."""
    return {
        module: frozenset(_imports(ast.parse(file.read_text()), module, file, files))
        for module, file in files.items()
    }


def _imports(tree: ast.AST, module: str, file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = _base_of(node, module, file)
            # `from package import module` imports the module; `from module import name` does not.
            names = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in known else base for name in names]
        yield from (name for name in names if name in known and name != module)


def _executed(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements, without those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                yield from _executed(ast.Module([other], []))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from _executed(node)


def _base_of(node: ast.ImportFrom, module: str, file: Path) -> str:
    """The absolute module that a ``from`` statement names."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def path_between(graph: Graph, start: str, end: str) -> list[str]:
    """A shortest chain of imports from one module to another; empty if there is none."""
    came_from, waiting = {start: start}, [start]
    for module in waiting:
        for imported in sorted(graph[module]):
            if imported == end:
                chain = [end, module]
                while chain[-1] != start:
                    chain.append(came_from[chain[-1]])
                return chain[::-1]
            if imported not in came_from:
                came_from[imported] = module
                waiting.append(imported)
    return []


def cycles(graph: Graph) -> list[str]:
    """A shortest cycle through each module that is on one, without repetitions."""
    found: dict[frozenset[str], str] = {}
    for module in graph:
        chain = path_between(graph, module, module)
        if chain:
            found.setdefault(frozenset(chain), " -> ".join(chain))
    return list(found.values())


def without(graph: Graph, edges: Iterable[tuple[str, str]]) -> Graph:
    """The graph without some imports."""
    removed = set(edges)
    return {
        module: frozenset(imported for imported in held if (module, imported) not in removed)
        for module, held in graph.items()
    }


@pytest.fixture(scope="module")
def graph() -> Graph:
    return import_graph(modules_of(PACKAGES))


@pytest.mark.system
def test_no_modules_import_each_other(graph: Graph) -> None:
    found = cycles(without(graph, ALLOWED))
    assert not found, "import cycles; move what both sides need to a module below them:\n" + "\n".join(found)


@pytest.mark.parametrize("edge", ALLOWED, ids=" -> ".join)
def test_every_allowed_import_still_closes_a_cycle(graph: Graph, edge: tuple[str, str]) -> None:
    importer, imported = edge
    remedy = f"the cycle is gone: delete {edge} from ALLOWED in {Path(__file__).name}"
    assert imported in graph.get(importer, ()), remedy
    assert path_between(without(graph, ALLOWED), imported, importer), remedy


def written(folder: Path, sources: Mapping[str, str]) -> Graph:
    """The import graph of a package that consists of these sources, by path."""
    for path, source in sources.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return import_graph(modules_of({"package": folder}))


@for_each(
    "source",
    [
        "import package.b",
        "from package import b",
        "from package.b import name",
        "from . import b",
        "from .b import name",
        "def lazy():\n    from package.b import name",
        "class Lazy:\n    def method(self):\n        import package.b",
        "try:\n    import package.b\nexcept ImportError:\n    pass",
        "if not TYPE_CHECKING:\n    import package.b",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import package.b",
    ],
)
def test_an_import_is_found_wherever_it_runs(tmp_path: Path, source: str) -> None:
    graph = written(
        tmp_path,
        {"package/__init__.py": "", "package/a.py": source, "package/b.py": "from package.a import x"},
    )
    assert "package.b" in graph["package.a"]
    assert cycles(graph) == ["package.a -> package.b -> package.a"]


def test_imports_for_the_type_checker_and_of_other_packages_do_not_count(tmp_path: Path) -> None:
    source = "import json\nif TYPE_CHECKING:\n    from package.b import name"
    graph = written(
        tmp_path, {"package/__init__.py": "", "package/a.py": source, "package/b.py": "import package.a"}
    )
    assert graph["package.a"] == frozenset()
    assert cycles(graph) == []
