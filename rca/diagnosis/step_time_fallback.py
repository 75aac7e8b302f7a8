"""Costs without timers of own work: the time of the job's slow steps beyond its quiet steps.

Collectives make the steps of all ranks equally long, so whole steps do not show the straggler and peers are
no reference. If machine evidence shows the straggler, the job's own past shows the cost: without the fault
its slow steps would have been like the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.classifier import Suspect, named_ranks
from rca.classify.suspects import own_work_is_timed
from rca.features import FeatureSet
from rca.robust import nan_max, nan_mean, nan_median
from rca.whatif.phases.phase_replay import PhaseReplay

#: Own work above peers from here on is a symptom, relative to the step.
OWN_SYMPTOM = 0.02
#: Least share of the steps' growth that the lateness explains. Lower values are a rest that remains after the
#: ranks met within a phase.
MIN_LATENESS_SHARE = 0.5
#: A spike is longer by so many times the slow segment's usual growth. The job's own spikes are at least so
#: many times as frequent outside the segment as inside.
SPIKE, AS_OFTEN = 4.0, 0.5


def priced_by_step_time(
    features: FeatureSet, suspects: Sequence[Suspect], replay: PhaseReplay
) -> tuple[FeatureSet, PhaseReplay]:
    """Features and replay with whole steps for own work, where nothing else can price the suspects.

    Returns
    -------
    features : FeatureSet
    replay : PhaseReplay
        Both unchanged where timers price the suspects, without suspects, or without quiet steps.
    """
    segment = features.comparison.segment
    named = named_ranks(suspects)
    if not suspects or segment.whole or timers_can_price(suspects, features):
        return features, replay
    # Ranks without step times took as long as the others.
    step = np.where(np.isfinite(features.work.step), features.work.step, features.work.job_step)
    inside = segment.mask(step.shape[1])
    quiet = np.broadcast_to(nan_median(step[:, ~inside], axis=1)[:, None], step.shape)
    usual = np.fmin(step, quiet)
    longer = np.where(inside, step - usual, 0.0)
    longer *= _beyond_own_spikes(features.work.job_step, inside)
    # The other ranks took longer only because of the suspects; a slow link lengthens the transfer of all.
    own, nothing = usual.copy(), np.zeros(step.shape)
    by_links = all(suspect.by_link for suspect in suspects)
    transfer = longer if by_links else nothing
    if not by_links:
        own[named] += longer[named]
    work = replace(features.work, own=own, phases={}, transfer=transfer, wait=nothing)
    comparison = replace(features.comparison, reference=usual, excess=own - usual, phase_excess={})
    blind = replace(features, work=work, comparison=comparison)
    flat = replace(
        replay,
        own=own,
        transfer=np.nan_to_num(nan_median(transfer)),
        serial=None,
        bubble=0.0,
        informative=True,
        replayed=nan_max(own + transfer),
    )
    return blind, flat


def timers_can_price(suspects: Sequence[Suspect], features: FeatureSet) -> bool:
    """Whether timers show the suspects' own excess, in total or by phase."""
    return own_work_is_timed(named_ranks(suspects), features) or _phases_can_price(suspects, features)


def _beyond_own_spikes(step: FloatArray, inside: BoolArray) -> FloatArray:
    """Share of each step's growth that belongs to the slow segment, (n_steps,); less than 1 for spikes.

    Checkpoints and evaluations are as frequent outside the slow segment as inside. Their length outside is
    subtracted; the rest is at least the usual growth of the segment's steps.
    """
    quiet = float(nan_median(step[~inside]))
    longer = np.maximum(np.nan_to_num(step - quiet), 0.0)
    usual = float(np.median(longer[inside]))
    spike = longer > SPIKE * usual
    inside_share, outside_share = float(spike[inside].mean()), float(spike[~inside].mean())
    if usual <= 0 or not inside_share or not outside_share or outside_share < AS_OFTEN * inside_share:
        return np.ones(step.size)
    kept = np.maximum(longer - np.median(longer[spike & ~inside]), usual)
    share: FloatArray = np.where(spike & inside, kept / np.maximum(longer, kept), 1.0)
    return share


def _phases_can_price(suspects: Sequence[Suspect], features: FeatureSet) -> bool:
    """Whether phases show the suspects' cost: above their peers', or, for the whole job, at all.

    They do not if the suspects became late with the slow segment and their lateness explains only a part of
    its growth. Ranks that meet several times within a phase are all late in it, each by less than it costs.
    """
    if features.work.phases and any(suspect.component.scope == "job" for suspect in suspects):
        # Slower collectives may lengthen any phase.
        return not all(suspect.by_link for suspect in suspects)
    excess = features.comparison.excess[named_ranks(suspects)]
    if not np.isfinite(excess).any() or np.nanmean(excess) < OWN_SYMPTOM * features.work.step_reference:
        return False
    step = features.work.job_step
    inside = features.comparison.segment.mask(step.size)
    longer = float(nan_mean(step[inside]) - nan_median(step[~inside]))
    late, before = (float(nan_mean(nan_max(excess[:, part]))) for part in (inside, ~inside))
    began = late - before >= OWN_SYMPTOM * features.work.step_reference
    return not (began and late < MIN_LATENESS_SHARE * longer)
