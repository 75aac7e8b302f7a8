"""Every feature belongs to one group, and every group has features."""

from __future__ import annotations

from rca.features import RANK_FEATURES, WINDOW_FEATURES
from rca.features import groups as module
from rca.features.groups import feature_groups
from rca.features.resource_evidence import resource_names


def test_every_feature_has_a_group_and_no_other_name_has() -> None:
    assert set(feature_groups()) == {*RANK_FEATURES, *WINDOW_FEATURES}
    assert set(feature_groups().values()) == {*module._GROUPS, *resource_names()}


def test_no_feature_is_listed_twice() -> None:
    listed = [name for names in module._GROUPS.values() for name in names]
    assert len(listed) == len(set(listed))


def test_the_scores_of_a_resource_are_its_own_group() -> None:
    for resource in resource_names():
        assert (
            feature_groups()[f"{resource}_vs_peers"]
            == feature_groups()[f"max_{resource}_vs_past"]
            == resource
        )
