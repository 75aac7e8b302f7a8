"""Balance the stages of a pipeline: whole layers, in order, exactly.

A pipeline is as fast as its slowest stage. The last stage also computes the loss, the first the embedding, so
equal numbers of layers are not equal times. What-if analysis reports +9.9 % from a hand-made re-balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.whatif.scenario import Change, Scenario, Selection

#: More layers than any model has; the search takes their square.
MAX_LAYERS = 4096


@dataclass(frozen=True)
class StageBalance:
    """Layers of each stage.

    Attributes
    ----------
    seconds : tuple of float
        Compute of each stage per microbatch.
    """

    layers: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def slowest(self) -> float:
        """Seconds of the slowest stage."""
        return max(self.seconds)


def balance_stages(
    layer_seconds: Sequence[float], n_stages: int, *, extra: Sequence[float] | None = None, least: int = 1
) -> StageBalance:
    """Split layers into stages so that the slowest stage is as fast as possible.

    Dynamic programming over the number of stages and the number of layers in them; the result is exact. Of
    equal splits the one with more layers in the earlier stages is taken.

    Parameters
    ----------
    layer_seconds : sequence of float, seconds
        Compute of each layer, in the order of the model.
    extra : sequence of float, seconds, optional
        Compute that a stage has beside its layers, such as embedding and loss.
    least : int
        Layers that each stage has at least.

    Raises
    ------
    InvalidInput
        If times are negative or unknown, or there are too few layers.
    """
    times = _seconds(layer_seconds, "layer_seconds")
    fixed = np.zeros(max(n_stages, 0)) if extra is None else _seconds(extra, "extra")
    n = times.size
    if n_stages < 1 or fixed.size != n_stages:
        raise InvalidInput(f"{n_stages} stages with {fixed.size} extra times", hint="give one for each stage")
    if least < 0 or n < least * n_stages or n > MAX_LAYERS:
        raise InvalidInput(
            f"{n} layers for {n_stages} stages of at least {least}", hint=f"at most {MAX_LAYERS} layers"
        )
    before = np.concatenate([[0.0], np.cumsum(times)])
    best = np.full(n + 1, np.inf)
    best[0] = 0.0
    cuts = np.zeros((n_stages, n + 1), dtype=np.int64)
    for stage in range(n_stages):
        found = np.full(n + 1, np.inf)
        for end in range(least * (stage + 1), n + 1):
            starts = np.arange(end - least + 1)
            slowest = np.maximum(best[starts], before[end] - before[starts] + fixed[stage])
            # The last of equal ones leaves more layers to the earlier stages.
            start = slowest.size - 1 - int(np.argmin(slowest[::-1]))
            found[end], cuts[stage, end] = slowest[start], start
        best = found
    ends = [n]
    for stage in reversed(range(n_stages)):
        ends.append(int(cuts[stage, ends[-1]]))
    bounds = ends[::-1]
    layers = tuple(int(count) for count in np.diff(bounds))
    seconds = before[bounds[1:]] - before[bounds[:-1]] + fixed
    return StageBalance(layers, tuple(float(each) for each in seconds))


def layer_costs(stage_seconds: Sequence[float], layers: Sequence[int]) -> tuple[float, list[float]]:
    """Seconds of a layer, and what each stage computes beside its layers, from stages as measured.

    Layers are taken as equal. The stages with the least time per layer have nothing but layers.

    Parameters
    ----------
    stage_seconds : sequence of float, seconds
    layers : sequence of int
        Layers of each stage, at least one.
    """
    seconds = _seconds(stage_seconds, "stage_seconds")
    counts = np.asarray(layers, dtype=np.int64)
    if counts.shape != seconds.shape or counts.size == 0 or (counts < 1).any():
        raise InvalidInput(f"{seconds.size} stages with layers {list(layers)}", hint="one or more per stage")
    per_layer = float((seconds / counts).min())
    return per_layer, [float(each) for each in seconds - per_layer * counts]


def as_scenario(
    before: StageBalance, after: StageBalance, layer_seconds: float, name: str = "balanced stages"
) -> Scenario:
    """What a replay changes to run the stages of another balance.

    Parameters
    ----------
    before, after : StageBalance
        Of equal layers.
    """
    gained = {
        stage: new - old for stage, (old, new) in enumerate(zip(before.layers, after.layers, strict=True))
    }
    changes = []
    for giver, lost in ((stage, -count) for stage, count in gained.items() if count < 0):
        left, share_left = lost, 1.0
        for taker in sorted(gained, key=lambda stage: abs(stage - giver)):
            moved = min(left, max(gained[taker], 0))
            if moved == 0:
                continue
            share = moved * layer_seconds / before.seconds[giver]
            # Each change moves a share of what is left after the changes before it.
            changes.append(
                Change(
                    select=Selection(stages=(giver,), kind="compute"),
                    to="move_to_stage",
                    stage=taker,
                    value=min(share / share_left, 1.0),
                )
            )
            gained[taker] -= moved
            left, share_left = left - moved, share_left - share
    return Scenario(name=name, changes=tuple(changes))


def _seconds(values: Sequence[float], name: str) -> FloatArray:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not np.isfinite(found).all() or (found < 0).any():
        raise InvalidInput(f"{name} need one time of zero or more each", hint="seconds, in order")
    return found
