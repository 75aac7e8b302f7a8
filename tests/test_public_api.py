"""The promised names, and what importing them must not cost."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import rca
from rca import collect
from tests.for_each import for_each

#: Measured at 0.9 to 7 s each; `rca diagnose` has 2 s in all.
HEAVY = (
    "dowhy", "fastapi", "jinja2", "lightgbm", "matplotlib", "mlflow", "networkx", "numba", "pandas", "rich",
    "scipy.optimize", "scipy.stats", "sklearn", "torch", "uvicorn",
)  # fmt: skip


def imported_by(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_all_is_sorted_and_about_fifteen_names() -> None:
    assert rca.__all__ == sorted(rca.__all__)
    assert len(set(rca.__all__)) == len(rca.__all__) <= 20


def test_every_promised_name_is_there_and_no_other_is_made_up() -> None:
    assert set(rca.__all__) <= set(dir(rca))
    assert all(getattr(rca, name) is not None for name in rca.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        rca.no_such_name  # noqa: B018


def test_nothing_of_ours_is_public_by_accident() -> None:
    """What lies in the package's namespace is promised, a module, or of the standard library."""
    held = {name: value for name, value in vars(rca).items() if not name.startswith("_")}
    ours = {name for name, value in held.items() if getattr(value, "__module__", "").startswith("rca")}
    assert ours <= set(rca.__all__)


@for_each("name", rca.__all__)
def test_every_promised_name_is_documented(name: str) -> None:
    member = getattr(rca, name)
    assert inspect.getdoc(member), f"rca.{name} has no docstring"
    if inspect.isfunction(member):
        hints = inspect.signature(member)
        assert hints.return_annotation is not inspect.Signature.empty
        assert all(one.annotation is not inspect.Parameter.empty for one in hints.parameters.values())


def public_methods(kind: type) -> list[tuple[str, object]]:
    return [
        (name, member)
        for name, member in vars(kind).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, classmethod | property))
    ]


@pytest.mark.parametrize("name", ["Bundle", "Diagnosis", "Window"])
def test_every_method_of_a_promised_type_is_documented(name: str) -> None:
    for method, member in public_methods(getattr(rca, name)):
        assert inspect.getdoc(member), f"rca.{name}.{method} has no docstring"


def test_every_error_has_a_code_of_its_own_and_one_base() -> None:
    errors = [getattr(rca, name) for name in rca.__all__ if inspect.isclass(getattr(rca, name))]
    errors = [error for error in errors if issubclass(error, Exception)]
    assert all(issubclass(error, rca.RcaError) for error in errors)
    assert len({error.code for error in errors}) == len(errors)


@pytest.mark.system
def test_importing_rca_imports_nothing_heavy() -> None:
    # pyarrow imports pandas lazily; were it imported here, something of ours asked for it.
    assert imported_by("from rca import *") & set(HEAVY) == set()


@pytest.mark.system
def test_a_diagnosis_imports_nothing_heavy_either() -> None:
    statement = "import rca; rca.diagnose(rca.read_window('data/windows/healthy'))"
    assert imported_by(statement) & (set(HEAVY) - {"pandas"}) == set()


@pytest.mark.system
def test_the_library_does_not_know_its_service_or_its_training() -> None:
    found = imported_by("from rca import *")
    assert not [
        name
        for name in found
        if name.startswith(("rca_api", "rca.lab.training", "rca.lab.simulation", "rca.lab.testbed"))
    ]


def test_the_collector_has_sorted_and_documented_functions() -> None:
    assert collect.__all__ == sorted(set(collect.__all__))
    for name in collect.__all__:
        function = getattr(collect, name)
        assert inspect.getdoc(function), f"rca.collect.{name} has no docstring"
        assert inspect.signature(function).return_annotation is not inspect.Signature.empty


def test_what_diagnose_returns_and_takes_is_what_is_exported() -> None:
    window = rca.read_window("data/windows/healthy")
    assert isinstance(window, rca.Window)
    assert isinstance(rca.diagnose(window), rca.Diagnosis)
