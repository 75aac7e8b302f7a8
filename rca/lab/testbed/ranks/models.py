"""Three small networks as lists of blocks, which a device runs one after the other, forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from rca.errors import MissingExtra
from rca.lab.testbed.scenario import Model

BATCH_SAMPLES = 32
_PIXELS = 12
_VOCABULARY, _HEADS = 256, 4
MAX_TOKENS, TYPICAL_TOKENS = 64, 24
SEQUENCES = 4
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Size:
    """Widths of the networks' layers."""

    features: int
    channels: int
    embedding: int


#: Small enough for many ranks on few cores.
NARROW = Size(features=136, channels=24, embedding=64)
#: Wide enough to occupy a GPU that repeats the batch; a CPU computes it once within the padded time.
WIDE = Size(features=512, channels=64, embedding=128)


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
    untrained : list of torch.nn.Module
        Modules that `inputs` uses.
    most_repeats : int
        Largest number of repetitions of the batch that a GPU's kernels accept.
    """

    blocks: list[Any]
    forward_seconds: list[float]
    backward_seconds: list[float]
    inputs: Callable[[Any, int], Any]
    untrained: list[Any] = field(default_factory=list)
    most_repeats: int = 100_000

    @property
    def compute_seconds(self) -> float:
        """Nominal time of a forward and a backward pass."""
        return sum(self.forward_seconds) + sum(self.backward_seconds)

    def move(self, device: Any) -> None:
        """Move all parameters to a device."""
        for module in (*self.blocks, *self.untrained):
            module.to(device)

    def parameters(self) -> list[Any]:
        """All parameters, in block order."""
        return [parameter for block in self.blocks for parameter in block.parameters()]


def preload() -> None:
    """Import PyTorch, its late imports and the samplers' libraries once, before processes are forked.

    The first backward pass imports the symbolic shapes, and the first optimizer the compiler.
    Both take seconds. The first Arrow table imports pandas.

    Raises
    ------
    MissingExtra
        If PyTorch, psutil or pyroute2 is not installed.
    """
    for module, purpose in (
        ("torch.distributed", "train with PyTorch"),
        ("psutil", "sample processes with psutil"),
        ("pyroute2", "sample networks with pyroute2"),
    ):
        try:
            import_module(module)
        except ImportError as error:
            raise MissingExtra(f"captures {purpose}", hint="pip install 'straggler-rca[testbed]'") from error
    with contextlib.suppress(ImportError):
        import_module("torch.fx.experimental.symbolic_shapes")
        import_module("torch._dynamo")
        import_module("pandas")


def build(model: Model, scale: float, size: Size = NARROW) -> Network:
    """Build a network; the same on every rank.

    Parameters
    ----------
    scale : float
        Factor on the kernels' time.
    """
    import torch

    torch.manual_seed(0)
    return {"mlp": _mlp, "transformer": _transformer, "convolution": _convolution}[model](scale, size)


def _mlp(scale: float, size: Size) -> Network:
    from torch import nn

    width = size.features
    blocks: list[Any] = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(8)]

    def inputs(raw: Any, _length: int) -> Any:
        return raw[: BATCH_SAMPLES * width].reshape(BATCH_SAMPLES, width).float() / 255

    return Network(blocks, [2.5e-3 * scale] * 8, [4.9e-3 * scale] * 8, inputs)


def _convolution(scale: float, size: Size) -> Network:
    from torch import nn

    sizes = [(3, size.channels), *[(size.channels, size.channels)] * 7]
    blocks: list[Any] = [
        nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU()) for inner, outer in sizes
    ]
    # Early layers process more pixels: kernels have unequal lengths, as in a real network.
    share = [2.4 - 0.22 * index for index in range(8)]
    forward = [scale * 20e-3 * part / sum(share) for part in share]

    def inputs(raw: Any, _length: int) -> Any:
        used = 2 * 3 * _PIXELS * _PIXELS
        return raw[:used].reshape(2, 3, _PIXELS, _PIXELS).float() / 255

    return Network(blocks, forward, [2 * seconds for seconds in forward], inputs)


def _transformer(scale: float, size: Size) -> Network:
    import torch
    from torch import nn

    width = size.embedding

    class Attention(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.heads = nn.MultiheadAttention(width, _HEADS, batch_first=True)

        def forward(self, hidden: Any) -> Any:
            normed = self.norm(hidden)
            return hidden + self.heads(normed, normed, normed, need_weights=False)[0]

    class FeedForward(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            inner = 2 * width
            self.layers = nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, inner),
                nn.GELU(),
                nn.Linear(inner, width),
            )

        def forward(self, hidden: Any) -> Any:
            return hidden + self.layers(hidden)

    embedding = nn.Embedding(_VOCABULARY, width)
    embedding.weight.requires_grad_(False)
    blocks: list[Any] = [kind() for _ in range(4) for kind in (Attention, FeedForward)]

    def inputs(raw: Any, length: int) -> Any:
        tokens = raw[: SEQUENCES * length].reshape(SEQUENCES, length)
        with torch.no_grad():
            return embedding(tokens.long())

    # Attention kernels launch a block per sequence and head, up to 65535 of them.
    most = 65_535 // (SEQUENCES * _HEADS)
    return Network(blocks, [2.5e-3 * scale] * 8, [4.9e-3 * scale] * 8, inputs, [embedding], most)


def views(flat: Any, parameters: list[Any]) -> list[Any]:
    """Each parameter's part of a flat buffer, in its shape."""
    parts = flat.split([parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
