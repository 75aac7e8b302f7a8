"""Evaluate described scenarios on whatever there is: a trace, or a window's phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rca.errors import InvalidInput
from rca.telemetry.window import Window
from rca.whatif.analysis import Meta, Source, replay_of
from rca.whatif.apply import scenario_seconds
from rca.whatif.engine import Engine
from rca.whatif.scenario import Scenario
from rca.whatif.schedules import Schedule, megatron
from rca.whatif.trace_replay import TraceReplay

FloatArray = npt.NDArray[np.float64]
Description: TypeAlias = Scenario | Mapping[str, Any]


def scenarios_of(
    source: Source,
    scenarios: Sequence[Description],
    meta: Meta | None = None,
    *,
    schedule: Schedule = megatron,
    engine: Engine = "auto",
) -> FloatArray:
    """Step times under described scenarios.

    Parameters
    ----------
    source, meta, schedule, engine
        As in `what_if`.
    scenarios : sequence of Scenario or mapping

    Returns
    -------
    ndarray of shape (n_scenarios, n_steps), seconds
        Without launch delays. Compare with the empty scenario, ``{"name": "as is"}``.
    """
    described = [Scenario.of(scenario) for scenario in scenarios]
    if isinstance(source, Window) and source.ops.num_rows == 0:
        from rca.whatif.coarse_analysis import coarse_scenario_seconds

        return coarse_scenario_seconds(source, described or [Scenario()])[: len(described)]
    replay = replay_of(source, meta, schedule=schedule, engine=engine)
    nodes = _nodes(source, replay) if isinstance(source, Window) and source.job.topology.node_names else None
    return scenario_seconds(replay, described, nodes)


def _nodes(window: Window, replay: TraceReplay) -> npt.NDArray[np.str_]:
    topology = window.job.topology
    if int(replay.ranks.max()) >= topology.n_ranks:
        raise InvalidInput("operations name ranks the job does not have")
    names = np.array([*topology.node_names, ""])
    held: npt.NDArray[np.str_] = names[topology.node[replay.ranks]]
    return held
