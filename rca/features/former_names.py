"""Names of features in bundles of earlier feature tables, and what they are called now.

A bundle stores the names of its features. Version 9 of the table renamed two thirds of version 8 and changed
no value, so a bundle of version 8 is read through `current_name`. Version 10 added features. Its
`pcie_vs_nominal` contains the state of the link; the former one is `pcie_errors_vs_nominal` today.
"""

from __future__ import annotations

from typing import Any

#: Versions of the feature table whose features are all among today's, with the same values.
COMPATIBLE_VERSIONS = (8, 9, 10)

_RENAMED = {
    "behind": "steps_behind",
    "excess_rank": "excess_order",
    "job_late": "late_rank_share",
    "last_concentration": "last_rank_concentration",
    "last_share": "arrives_last_share",
    "last_spread": "last_rank_spread",
    "node_mates_excess": "node_peer_excess",
    "node_mates_late": "node_peer_late_share",
    **{
        f"{prefix}own_excess{suffix}": f"{prefix}own_time_excess{suffix}"
        for prefix in ("", "max_")
        for suffix in ("", "_z", "_p90", "_outside")
    },
    "own_growth": "own_time_growth",
    "own_volatility": "own_time_volatility",
    "progress": "steps_behind_furthest",
    "silence": "steps_since_progress",
    "stage_mates_late": "stage_peer_late_share",
    "stages": "pipeline_stages",
    "tensor_mates_excess": "tensor_peer_excess",
    "trend": "step_time_trend",
    "versus_load": "slow_segment_ratio_per_load",
    "versus_past": "slow_segment_ratio",
    "worst_behind": "max_steps_behind",
    # Late episodes of a rank; of the window where the prefix is not "top_".
    "apart_spell_cost": "other_node_episode_cost",
    "median_spell_cost": "median_episode_cost",
    "second_spell_cost": "second_episode_cost",
    "spell_cost": "episode_cost",
    "spell_end": "episode_end",
    "spell_excess": "episode_excess",
    "spell_gain": "episode_removal_gain",
    "spell_last": "episode_arrives_last_share",
    "spell_late": "episode_late_share",
    "spell_late_steps": "episode_late_steps_log2",
    "spell_node_mates": "episode_node_peer_excess",
    "spell_outside": "episode_excess_outside",
    "spell_share": "episode_share",
    "spell_start": "episode_start",
    "spell_tensor_mates": "episode_tensor_peer_excess",
    "spell_wait": "episode_wait_deficit",
}
#: Features that were given another meaning in version 10 -> the feature with their former values.
_REDEFINED = {
    f"{prefix}pcie_vs_nominal": f"{prefix}pcie_errors_vs_nominal" for prefix in ("", "max_", "median_")
}
_PREFIXES = {"stretch_": "slow_segment_"}
_SUFFIXES = {
    "_bursts": "_spike_mean",
    "_past": "_vs_past",
    "_peers": "_vs_peers",
    "_sound": "_vs_nominal",
    "_spell": "_episode_excess",
    "_turns": "_stepwise_max_excess",
}


def current_name(former: str) -> str:
    """Today's name of a feature of table version 8; a name that was not changed is returned as it is."""
    if former in _RENAMED:
        return _RENAMED[former]
    if former.startswith("top_") and "spell" in former:
        return "worst_" + current_name(former.removeprefix("top_"))
    for old, new in _PREFIXES.items():
        if former.startswith(old):
            return new + former.removeprefix(old)
    for old, new in _SUFFIXES.items():
        if former.endswith(old) and not former.endswith(new):
            return former.removesuffix(old) + new
    return former


def _same_values(former: str) -> str:
    """Today's feature that has the values of a feature of an earlier table."""
    name = current_name(former)
    return _REDEFINED.get(name, name)


def with_current_names(heads: dict[str, Any]) -> dict[str, Any]:
    """The document ``heads.json`` of a bundle of an earlier table version, in today's names.

    Parameters
    ----------
    heads : dict
        As read; it is not changed.
    """
    renamed = dict(heads)
    renamed["heads"] = {
        name: {**head, "features": [_same_values(each) for each in head["features"]]}
        for name, head in heads["heads"].items()
    }
    if (familiarity := heads.get("familiarity")) is not None:
        shape = familiarity["shape"]
        renamed["familiarity"] = {
            **familiarity,
            "ranges": {_same_values(name): limits for name, limits in familiarity["ranges"].items()},
            "shape": {**shape, "features": [_same_values(name) for name in shape["features"]]},
        }
    return renamed
