"""What people read about the causal model: the verdicts, and nothing that the data did not say."""

from __future__ import annotations

import numpy as np

from rca.causal import Mechanisms
from rca.causal.graph import PHASES
from rca.causal.intervals import Margin
from rca.causal.report import causal_page
from rca.features.evidence import resource_names

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
