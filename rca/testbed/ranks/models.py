"""Three small networks as lists of kernels: blocks that a device runs one after the other, there and back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rca.errors import MissingExtra
from rca.testbed.scenario import Model

WIDTH = 136
BATCH = 32
_CHANNELS, _PIXELS = 24, 12
_EMBEDDING, _VOCABULARY, _HEADS = 64, 256, 4
LONGEST, TYPICAL = 64, 24
SEQUENCES = 4


@dataclass(frozen=True)
class Network:
    """A network to train.

    Attributes
    ----------
    blocks : list of torch.nn.Module
        One forward and one backward kernel each.
    forward_seconds, backward_seconds : list of float
        Time each kernel is padded to.
    inputs : callable
        From ``(bytes tensor, tokens per sequence)`` to the first block's input.
    """

    blocks: list[Any]
    forward_seconds: list[float]
    backward_seconds: list[float]
    inputs: Callable[[Any, int], Any]

    def parameters(self) -> list[Any]:
        """All parameters, in block order."""
        return [parameter for block in self.blocks for parameter in block.parameters()]


def preload() -> None:
    """Import PyTorch with what it imports late, once, so that forked processes need not.

    The first backward pass imports the symbolic shapes, which takes seconds.

    Raises
    ------
    MissingExtra
        If PyTorch is not installed.
    """
    try:
        import_module("torch.distributed")
    except ImportError as error:
        raise MissingExtra(
            "captures train with PyTorch", hint="pip install 'straggler-rca[testbed]'"
        ) from error
    with contextlib.suppress(ImportError):
        import_module("torch.fx.experimental.symbolic_shapes")


def build(model: Model, scale: float) -> Network:
    """Build a network; the same on every rank.

    Parameters
    ----------
    scale : float
        Factor on the kernels' time.
    """
    import torch

    torch.manual_seed(0)
    return {"mlp": _mlp, "transformer": _transformer, "convolution": _convolution}[model](scale)


def _mlp(scale: float) -> Network:
    from torch import nn

    blocks: list[Any] = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(8)]

    def inputs(raw: Any, _length: int) -> Any:
        return raw[: BATCH * WIDTH].reshape(BATCH, WIDTH).float() / 255

    return Network(blocks, [2.5e-3 * scale] * 8, [4.9e-3 * scale] * 8, inputs)


def _convolution(scale: float) -> Network:
    from torch import nn

    sizes = [(3, _CHANNELS), *[(_CHANNELS, _CHANNELS)] * 7]
    blocks: list[Any] = [
        nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU()) for inner, outer in sizes
    ]
    # Early layers see more pixels: kernels of unequal length, as in a real network.
    share = [2.4 - 0.22 * index for index in range(8)]
    forward = [scale * 20e-3 * part / sum(share) for part in share]

    def inputs(raw: Any, _length: int) -> Any:
        used = 2 * 3 * _PIXELS * _PIXELS
        return raw[:used].reshape(2, 3, _PIXELS, _PIXELS).float() / 255

    return Network(blocks, forward, [2 * seconds for seconds in forward], inputs)


def _transformer(scale: float) -> Network:
    import torch
    from torch import nn

    class Attention(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(_EMBEDDING)
            self.heads = nn.MultiheadAttention(_EMBEDDING, _HEADS, batch_first=True)

        def forward(self, hidden: Any) -> Any:
            normed = self.norm(hidden)
            return hidden + self.heads(normed, normed, normed, need_weights=False)[0]

    class FeedForward(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            inner = 2 * _EMBEDDING
            self.layers = nn.Sequential(
                nn.LayerNorm(_EMBEDDING),
                nn.Linear(_EMBEDDING, inner),
                nn.GELU(),
                nn.Linear(inner, _EMBEDDING),
            )

        def forward(self, hidden: Any) -> Any:
            return hidden + self.layers(hidden)

    embedding = nn.Embedding(_VOCABULARY, _EMBEDDING)
    embedding.weight.requires_grad_(False)
    blocks: list[Any] = [kind() for _ in range(4) for kind in (Attention, FeedForward)]

    def inputs(raw: Any, length: int) -> Any:
        tokens = raw[: SEQUENCES * length].reshape(SEQUENCES, length)
        with torch.no_grad():
            return embedding(tokens.long())

    return Network(blocks, [2.5e-3 * scale] * 8, [4.9e-3 * scale] * 8, inputs)
