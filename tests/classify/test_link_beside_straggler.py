"""Slow collectives as a second fault next to a straggler."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rca.classify import link_evidence
from rca.classify.components import Component, ComponentCause

LATE = 0


@pytest.mark.parametrize(
    ("cause", "left"),
    [("gpu_throttling", True), ("memory_pressure", False), ("nic_degradation", False), ("unknown", False)],
)
def test_slower_collectives_are_residual_unless_the_cause_lengthens_transfers(
    monkeypatch: pytest.MonkeyPatch, cause: str, left: bool
) -> None:
    """Transfers take three times as long in the second half; nothing else grows."""
    steps = np.arange(40)
    inside = steps >= 20
    transfer = np.where(inside, 0.6, 0.2) * np.ones((4, 1))
    slower = SimpleNamespace(
        work=SimpleNamespace(steps=steps, transfer=transfer, job_step=1.0 + transfer[0], step_reference=1.2),
        comparison=SimpleNamespace(segment=SimpleNamespace(whole=False, mask=lambda _n: inside)),
    )
    monkeypatch.setattr(link_evidence, "transfer_grew", lambda _features: True)
    suspect = ComponentCause(Component("rank", (1,), 0.9), cause)
    assert link_evidence.residual_collectives([suspect], slower) is left
