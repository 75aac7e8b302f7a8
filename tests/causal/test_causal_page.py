"""What people read about the causal model: the verdicts, and nothing that the data did not say."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from rca.causal import Mechanisms
from rca.causal.graph import PHASES
from rca.causal.intervals import Margin
from rca.errors import BundleError
from rca.features.resource_evidence import resource_names
from rca.lab.training.causal_page import causal_page
from tests.for_each import for_each

ARROW = {
    "source": "nic",
    "target": "transfer",
    "slope": 0.1,
    "effect": 0.11,
    "placebo": 0.001,
    "random_common_cause": 0.11,
    "subset": 0.12,
    "holds": True,
}


def page(**report: object) -> str:
    shape = (len(PHASES), len(resource_names()))
    return causal_page(
        Mechanisms(
            resource_names(),
            np.zeros(shape),
            np.zeros(shape[0]),
            np.ones(shape[0]),
            margins={"any": Margin(0.8, 0.35)},
            report=report,
        )
    )


def test_a_contradicted_graph_is_called_so() -> None:
    graph = {"rows": 2000, "tests": 81, "violations": 32, "rate": 32 / 81, "better_than_permuted": 1.0}
    assert "CONTRADICTED" in page(graph=graph | {"holds": False})
    assert "not contradicted" in page(graph=graph | {"holds": True})
    assert "32 of the 81" in page(graph=graph | {"holds": True})


def test_a_refuted_arrow_is_shown_as_exported_without_effect() -> None:
    text = page(arrows=[ARROW, ARROW | {"target": "forward", "holds": False}])
    assert "| nic -> transfer | 0.1000 |" in text
    assert "| nic -> forward | 0.0000 |" in text


def test_margins_are_shown_with_what_made_them_necessary() -> None:
    text = page(intervals={"level": 0.95, "before": 0.823, "causes": 1200, "beyond": 0.07})
    assert "covered 82.3%" in text
    assert "7.0% of the true costs did" in text
    assert "| any | 0.800 | 35% |" in text


def test_the_graph_is_always_drawn() -> None:
    assert '"waiting" -> "gpu_clock_signal";' in page()


def document(**changes: object) -> dict[str, object]:
    shape = (len(PHASES), len(resource_names()))
    held = Mechanisms(
        resource_names(),
        np.zeros(shape),
        np.zeros(shape[0]),
        np.ones(shape[0]),
        margins={"any": Margin(0.8, 0.35)},
    )
    return held.to_document() | changes


def test_margins_are_read_as_they_were_written() -> None:
    assert Mechanisms.from_document(document()).margins == {"any": Margin(0.8, 0.35)}


def test_a_bundle_of_format_1_is_read_without_its_margins() -> None:
    old = document(format=1, interval_margins={"any": 34.5})
    assert Mechanisms.from_document(old).margins == {}


def test_an_unknown_format_is_refused_with_what_to_do() -> None:
    with pytest.raises(BundleError, match="format 3, this version reads 2") as refused:
        Mechanisms.from_document(document(format=3))
    assert "rca train" in str(refused.value.hint)


@pytest.mark.parametrize("margin", [{"below": -3, "above": 0.5}, {"below": 0.5, "above": 7}])
def test_margins_that_are_no_shares_are_refused(margin: dict[str, float]) -> None:
    with pytest.raises(BundleError, match="shares from 0 to 1"):
        Mechanisms.from_document(document(interval_margins={"any": margin}))


def test_the_shipped_page_is_what_the_shipped_mechanisms_say() -> None:
    folder = Path(str(files("rca_models"))) / "baseline"
    mechanisms = Mechanisms.from_document(json.loads((folder / "causal.json").read_text(encoding="utf-8")))
    assert causal_page(mechanisms) == (folder / "causal.md").read_text(encoding="utf-8")


@for_each(
    ("name", "value", "message"),
    [
        ("coefficients", [[0.1]], "coefficients has the shape"),
        ("intercepts", [0.0], "intercepts has the shape"),
        ("noise", [], "noise has the shape"),
        ("noise", [float("nan")] * len(PHASES), "noise contains values that are not finite"),
        ("noise", [-1.0] * len(PHASES), "noise is negative"),
        ("intercepts", [10**400] * len(PHASES), "intercepts is not a table of numbers"),
        ("coefficients", [[0.1], [0.1, 0.2]], "coefficients is not a table of numbers"),
    ],
)
def test_arrays_of_another_size_are_refused(name: str, value: list, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        Mechanisms.from_document(document(**{name: value}))
