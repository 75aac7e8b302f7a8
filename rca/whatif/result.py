"""The result of a what-if analysis, as values and as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput
from rca.whatif.attribution import Decomposition, Share, SlowdownFinding, WorkerSlowdowns
from rca.whatif.bootstrap import Interval, StepBootstrap

FORMAT = 1
MAX_LEFT_OUT = 0.1
"""Share of the steps. If more are left out, the result has a warning."""

UNFAITHFUL = 0.05
"""Relative error of the replay. Above it the result has a warning; the published tool drops such jobs."""


@dataclass(frozen=True)
class WhatIf:
    """How much faster a job would have been without its stragglers, and what each straggler costs.

    Attributes
    ----------
    source : {"operations", "phases"}
        Whether operations or per-step phases were replayed.
    job : mapping
        Sizes of the job in the metadata.
    steps : ndarray of shape (n_steps,), int
    measured, no_delay, ideal : ndarray of shape (n_steps,), seconds
        Step times: as traced, replayed without launch delays, and with ideal durations.
    m_w, m_s : Share
        Shares of the slowest 3 % of workers, and of the last stage.
    seed : int
        Seed of the bootstrap.
    left_out : int
        Steps of the trace that could not be replayed.
    """

    source: Literal["operations", "phases"]
    job: Mapping[str, Any]
    steps: IntArray
    measured: FloatArray
    no_delay: FloatArray
    ideal: FloatArray
    by_type: Decomposition
    by_data_rank: Decomposition
    by_stage: Decomposition
    workers: WorkerSlowdowns
    m_w: Share
    m_s: Share
    findings: tuple[SlowdownFinding, ...]
    world_size: int
    seed: int = 0
    notes: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def slowdown(self) -> float:
        """S: mean replayed step time / mean ideal step time."""
        return float(self.no_delay.mean() / self.ideal.mean())

    @property
    def waste(self) -> float:
        """Share of the job's time lost to stragglers, 1 - 1 / S."""
        return 1.0 - 1.0 / self.slowdown

    @property
    def launch_slowdown(self) -> float:
        """Mean measured step time / mean replayed step time: the effect of delays outside the model."""
        return float(self.measured.mean(dtype=np.float64) / self.no_delay.mean())

    @property
    def fidelity(self) -> float:
        """Relative error of the mean replayed step time (without launch delays) against the measured one."""
        return abs(1.0 / self.launch_slowdown - 1.0)

    @property
    def seconds_lost_per_step(self) -> float:
        """Mean step time lost to stragglers."""
        return float(self.no_delay.mean() - self.ideal.mean())

    @property
    def gpu_hours_lost(self) -> float:
        """GPU hours lost in the replayed steps, over all GPUs of the job."""
        return self.seconds_lost_per_step * self.steps.size * self.world_size / 3600.0

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to distrust the figures."""
        texts = []
        if self.fidelity > UNFAITHFUL:
            texts.append(f"replay differs from the measured step time by {self.fidelity:.1%} (more than 5 %)")
        n_steps = self.steps.size + self.left_out
        if self.left_out > MAX_LEFT_OUT * n_steps:
            texts.append(f"{self.left_out} of {n_steps} steps could not be replayed and are left out")
        return tuple(texts)

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """90 % bootstrap intervals over steps of the slowdowns, of each component, and of M_W and M_S.

        M_W is that of the exact set. Shares that are None have no interval.
        """
        drawn = StepBootstrap.of(self.steps.size, self.seed)
        ideal = self.ideal.astype(np.float64)
        found = {
            "slowdown": drawn.ratio(self.no_delay, ideal),
            "launch_slowdown": drawn.ratio(self.measured.astype(np.float64), self.no_delay),
        }
        lower, upper = found["slowdown"]
        found["waste"] = (1 - 1 / lower, 1 - 1 / upper)
        components = (("type", self.by_type), ("stage", self.by_stage), ("data_rank", self.by_data_rank))
        for prefix, parts in components:
            bounds = drawn.ratios(parts.seconds, ideal)
            found |= {f"{prefix}:{label}": held for label, held in zip(parts.labels, bounds, strict=True)}
        for name, share in (("m_w", self.m_w), ("m_s", self.m_s)):
            if share.exact is not None and share.without is not None:
                found[name] = drawn.ratio(self.no_delay - share.without, self.no_delay - ideal)
        return found

    def to_dict(self, *, per_step: bool = True) -> dict[str, Any]:
        """Plain data for any JSON encoder."""
        exact = self.workers.slowdown(self.ideal)
        order = np.argsort(-exact, kind="stable")
        answer: dict[str, Any] = {
            "format": FORMAT,
            "source": self.source,
            "job": dict(self.job),
            "slowdown": self.slowdown,
            "waste": self.waste,
            "seconds_lost_per_step": self.seconds_lost_per_step,
            "gpu_hours_lost": self.gpu_hours_lost,
            "launch_slowdown": self.launch_slowdown,
            "fidelity": self.fidelity,
            "by_type": self.by_type.slowdown(self.ideal),
            "by_data_rank": self.by_data_rank.slowdown(self.ideal),
            "by_stage": self.by_stage.slowdown(self.ideal),
            "workers": [
                {
                    "rank": int(self.workers.rank[w]),
                    "data_rank": int(self.workers.data_rank[w]),
                    "stage": int(self.workers.stage[w]),
                    "slowdown": float(exact[w]),
                    "published_slowdown": float(self.workers.approximate[w]),
                }
                for w in order
            ],
            "m_w": _share(self.m_w),
            "m_s": _share(self.m_s),
            "findings": [finding.to_dict() for finding in self.findings],
            "intervals": {name: list(bounds) for name, bounds in self.intervals.items()},
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }
        if per_step:
            answer["steps"] = {
                "step": self.steps.tolist(),
                "measured_seconds": self.measured.astype(np.float64).tolist(),
                "no_delay_seconds": self.no_delay.tolist(),
                "ideal_seconds": self.ideal.tolist(),
                "slowdown": (self.no_delay / self.ideal).tolist(),
                "by_type": _per_step(self.by_type, self.ideal),
                "by_stage": _per_step(self.by_stage, self.ideal),
                "by_data_rank": _per_step(self.by_data_rank, self.ideal),
            }
        plain: dict[str, Any] = finite(answer)
        return plain

    def to_json(self, *, indent: int | None = None, per_step: bool = True) -> str:
        """JSON text of `to_dict`; unknown numbers are ``null``."""
        return json.dumps(self.to_dict(per_step=per_step), indent=indent, allow_nan=False)

    def published(self) -> dict[str, Any]:
        """Keys of ``result-*.json`` plus ``Mw`` and ``Ms``; slowdowns sorted from the largest.

        Raises
        ------
        InvalidInput
            If phases were replayed. The layout cannot show that its operation types are phases.
        """
        if self.source != "operations":
            raise InvalidInput(
                "the published format describes operation traces; this job is known by its phases only",
                hint="use the json format",
            )
        steps = [str(step) for step in self.steps]
        blocking = self.no_delay / self.ideal
        launch = self.measured.astype(np.float64) / self.no_delay
        answer: dict[str, Any] = {
            "job_meta": dict(self.job),
            "step_t_base": _by_step(steps, self.measured.astype(np.float64)),
            "step_t_nodelay": _by_step(steps, self.no_delay),
            "step_t_noblk": _by_step(steps, self.ideal),
            "launch_slowdown": self.launch_slowdown,
            "blocking_slowdown": self.slowdown,
            "blocking_step_slowdown": _largest_first(steps, blocking),
            "launch_step_slowdown": _largest_first(steps, launch),
        }
        order = np.argsort(-blocking, kind="stable")
        for name, parts in (
            ("dp_rank", self.by_data_rank),
            ("stage", self.by_stage),
            ("optype", self.by_type),
        ):
            answer[f"blocking_decompose_by_{name}"] = _text_keys(parts.slowdown(self.ideal))
            answer[f"launch_decompose_by_{name}"] = None
            answer[f"blocking_decompose_by_{name}_per_step"] = {
                steps[k]: _text_keys(parts.step_slowdown(self.ideal, int(k))) for k in order
            }
            answer[f"launch_decompose_by_{name}_per_step"] = None
        answer["Mw"] = self.m_w.published
        answer["Ms"] = self.m_s.published
        return answer


def _share(share: Share) -> dict[str, Any]:
    return {"published": share.published, "exact": share.exact, "ranks": list(share.ranks)}


def _per_step(parts: Decomposition, ideal: FloatArray) -> dict[str, list[float]]:
    ratios = parts.seconds / ideal
    return {str(label): row.tolist() for label, row in zip(parts.labels, ratios, strict=True)}


def finite(value: Any) -> Any:
    """Plain data without NaN, for JSON: unknown numbers become None, dictionary keys become text."""
    if isinstance(value, dict):
        return {str(key): finite(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(held) for held in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _by_step(steps: list[str], values: FloatArray) -> dict[str, float]:
    return dict(zip(steps, values.tolist(), strict=True))


def _largest_first(steps: list[str], values: FloatArray) -> dict[str, float]:
    return {steps[k]: float(values[k]) for k in np.argsort(-values, kind="stable")}


def _text_keys(slowdowns: dict[Any, float]) -> dict[str, float]:
    return {str(label): value for label, value in slowdowns.items()}
