"""The best learning rate against quadratic losses, whose best step is known."""

from __future__ import annotations

import math

import pytest


def test_it_is_the_best_step_along_the_gradient() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    from rca.runtime.star.learning_rate import best_learning_rate

    w, b = torch.tensor([1.0, -2.0], requires_grad=True), torch.tensor([0.5], requires_grad=True)

    def loss(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 0.5 * (2.0 * w[0] ** 2 + 8.0 * w[1] ** 2) + 3.0 * b[0] ** 2

    found = best_learning_rate(loss(w, b), [w, b])
    steps = [found * factor for factor in (0.9, 1.0, 1.1)]
    gradients = torch.autograd.grad(loss(w, b), [w, b])
    after = [float(loss(w - step * gradients[0], b - step * gradients[1]).detach()) for step in steps]
    assert min(after) == after[1]


def test_it_has_no_bound_where_the_loss_is_a_plane() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    from rca.runtime.star.learning_rate import best_learning_rate

    w = torch.ones(3, requires_grad=True)
    assert math.isinf(best_learning_rate(-(w.square().sum()), [w]))
