"""Evaluate described scenarios on whatever there is: a trace, or a window's phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rca.arrays import FloatArray
from rca.errors import InvalidInput, TooLarge
from rca.telemetry.window import Window
from rca.whatif.analysis import Meta, Source, analysed, replay_of
from rca.whatif.apply import scenario_seconds
from rca.whatif.engine import Engine
from rca.whatif.result import WhatIf
from rca.whatif.scenario import Scenario
from rca.whatif.schedules import Schedule, megatron
from rca.whatif.trace_replay import TraceReplay

Description: TypeAlias = Scenario | Mapping[str, Any]

MOST_SCENARIOS = 10_000
MOST_CHANGES = 100
"""Scenarios taken at once, and changes of each."""


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

        return coarse_scenario_seconds(source, described)
    replay = replay_of(source, meta, schedule=schedule, engine=engine)
    return scenario_seconds(replay, described, _nodes(source, replay))


def analysed_scenarios(
    source: Source,
    scenarios: Sequence[Description],
    meta: Meta | None = None,
    *,
    seed: int = 0,
    replay: TraceReplay | None = None,
) -> tuple[WhatIf, FloatArray]:
    """The analysis and, on its steps, the step times under described scenarios.

    Parameters
    ----------
    source, meta, seed
        As in `what_if`.
    scenarios : sequence of Scenario or mapping
    replay : TraceReplay, optional
        Of `source`, where the caller has it already.

    Returns
    -------
    result : WhatIf
    seconds : ndarray of shape (n_scenarios, n_steps), seconds
        Compare with ``result.no_delay``.
    """
    described = described_all(scenarios)
    if isinstance(source, Window) and source.ops.num_rows == 0:
        from rca.whatif.coarse_analysis import coarse_analysed_scenarios

        return coarse_analysed_scenarios(source, described, seed=seed)
    if replay is None:
        replay = replay_of(source, meta)
    nodes = _nodes(source, replay)
    return analysed(replay, seed=seed), scenario_seconds(replay, described, nodes)


def described_all(scenarios: object) -> list[Scenario]:
    """Scenarios from plain data, within limits.

    Raises
    ------
    InvalidInput
        Naming the scenario by its position, counted from 0, and the field.
    TooLarge
        If there are more than one call may ask.
    """
    if not isinstance(scenarios, Sequence) or isinstance(scenarios, (str, bytes)):
        raise InvalidInput("scenarios must be a list", hint='[{"name": ..., "changes": [...]}, ...]')
    if len(scenarios) > MOST_SCENARIOS:
        raise TooLarge(f"{len(scenarios):,} scenarios; at most {MOST_SCENARIOS:,} are taken at once")
    described = []
    for position, scenario in enumerate(scenarios):
        try:
            described.append(Scenario.of(scenario))
        except InvalidInput as error:
            raise InvalidInput(
                f"scenarios[{position}]: {error.message.removeprefix('scenario: ')}"
            ) from error
        if len(described[-1].changes) > MOST_CHANGES:
            raise TooLarge(f"scenarios[{position}] has more than {MOST_CHANGES} changes")
    return described


def _nodes(source: Source, replay: TraceReplay) -> npt.NDArray[np.str_] | None:
    """Node of every worker, where the source is a window that names nodes."""
    if not isinstance(source, Window) or not source.job.topology.node_names:
        return None
    topology = source.job.topology
    if int(replay.ranks.max()) >= topology.n_ranks:
        raise InvalidInput("operations name ranks the job does not have")
    names = np.array([*topology.node_names, ""])
    held: npt.NDArray[np.str_] = names[topology.node[replay.ranks]]
    return held
