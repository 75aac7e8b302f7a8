from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from rca.errors import InvalidInput
from rca.lab.testbed import FAULTS
from rca.lab.testbed.matrix import ScenarioMatrix, expand, part_of, read_matrix

SHIPPED = Path(__file__).parents[2] / "data/testbed/matrix.yaml"


def matrix(*groups: dict[str, object], **fields: object) -> ScenarioMatrix:
    return ScenarioMatrix.model_validate({"name": "small", "seed": 3, "groups": groups, **fields})


HOGS = {"name": "hogs", "faults": [{"kind": "cpu_hogs"}], "world_sizes": [4, 8], "severities": [1, 3]}
CALM = {"name": "calm", "repeat": 3}


def test_a_group_is_expanded_over_models_world_sizes_severities_and_repetitions():
    planned = expand(matrix(HOGS, CALM))
    assert Counter(each.group for each in planned) == {"hogs": 2 * 2 * 2, "calm": 2 * 3}
    assert len({each.scenario.name for each in planned}) == len(planned)


def test_the_same_seed_gives_the_same_captures_in_the_same_order():
    assert expand(matrix(HOGS, CALM)) == expand(matrix(HOGS, CALM))
    other = expand(matrix(HOGS, CALM, seed=4))
    assert [each.scenario.name for each in other] != [
        each.scenario.name for each in expand(matrix(HOGS, CALM))
    ]


def test_adding_a_group_changes_nothing_about_the_others():
    alone = {each.scenario.name: each for each in expand(matrix(HOGS))}
    together = {each.scenario.name: each for each in expand(matrix(CALM, HOGS))}
    assert all(together[name] == planned for name, planned in alone.items())


def test_a_split_keeps_a_group_at_a_world_size_together():
    parts = defaultdict(set)
    for each in expand(matrix(HOGS, CALM)):
        parts[each.group, each.scenario.job.world_size].add(each.part)
    assert all(len(held) == 1 for held in parts.values())


def test_many_groups_have_the_shares_of_the_parts():
    drawn = Counter(part_of(matrix(CALM), f"group-{index}", 8) for index in range(2000))
    assert drawn["train"] / 2000 == pytest.approx(0.5, abs=0.05)
    assert drawn["test"] / 2000 == pytest.approx(0.35, abs=0.05)


def test_when_decides_first_and_last_step():
    plans = [{"kind": "gc_pauses", "when": when} for when in ("whole", "to_end", "middle")]
    [planned] = expand(matrix({"name": "three", "faults": plans, "models": ["mlp"]}))
    whole, to_end, middle = planned.scenario.faults
    assert (whole.first_step, whole.last_step) == (0, None)
    assert to_end.first_step > 8
    assert to_end.last_step is None
    assert middle.last_step is not None
    assert middle.last_step < planned.scenario.job.steps - 3


def test_a_mistake_in_the_matrix_is_named():
    with pytest.raises(ValueError, match="unknown fault 'flood'"):
        matrix({"name": "x", "faults": [{"kind": "flood"}]})
    with pytest.raises(ValueError, match="have the same name"):
        matrix(CALM, CALM)
    with pytest.raises(ValueError, match="add up to 1"):
        matrix(CALM, shares={"train": 0.7})
    with pytest.raises(InvalidInput, match="needs the transformer"):
        expand(matrix({"name": "x", "faults": [{"kind": "sequence_lengths"}], "models": ["mlp"]}))


def test_the_shipped_matrix_covers_every_fault_without_a_gpu_and_leaves_no_cause_out_of_a_part():
    planned = expand(read_matrix(SHIPPED))
    assert len(planned) >= 150
    kinds = {fault.kind for each in planned for fault in each.scenario.faults}
    assert kinds == {kind for kind, spec in FAULTS.items() if spec.device != "gpu"}
    parts = defaultdict(set)
    for each in planned:
        for cause in {fault.spec.cause for fault in each.scenario.faults} or {"healthy"}:
            parts[cause].add(each.part)
    assert all({"train", "test"} <= held for held in parts.values())
    assert {each.scenario.job.world_size for each in planned} == {2, 4, 6, 8, 12, 16}
    assert sum(not each.scenario.faults for each in planned) >= 40
    assert sum(len(each.scenario.faults) > 1 for each in planned) >= 8
