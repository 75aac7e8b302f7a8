"""The learning rate that lowers the loss most, in units of which `price` has its learning rates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def best_learning_rate(loss: Tensor, parameters: Sequence[Tensor]) -> float:
    """Learning rate of the largest progress in the direction of the gradient, to the second order.

    It is ``g'g / g'Hg`` with the gradient `g` and the Hessian `H`. Divide the learning rate of an update from
    all workers by it, and give the share as `Progress.learning_rate`.

    Parameters
    ----------
    loss : Tensor
        Over as many samples as memory allows, so that the gradient has little noise.

    Returns
    -------
    float
        Infinite where the loss does not curve up.

    References
    ----------
    .. [1] McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv 1812.06162, equation 2.5.
    """
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    fixed = [each.detach() for each in gradients]
    along = torch.stack([(each * other).sum() for each, other in zip(gradients, fixed, strict=True)]).sum()
    curved = torch.autograd.grad(along, parameters, allow_unused=True)
    squared = float(sum(each.square().sum() for each in fixed))
    pairs = zip(fixed, curved, strict=True)
    curvature = float(sum((each * other).sum() for each, other in pairs if other is not None))
    return squared / curvature if curvature > 0 else float("inf")
