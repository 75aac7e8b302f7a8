"""Costs where no timer tells own work from waiting: what the job's steps took beyond its own quiet ones.

Collectives make everybody's steps equally long, so whole steps accuse nobody, and peers are no reference.
Once machines' signals have said who it is, the job's own past says what it costs: without the named ranks'
trouble its slow steps would have been like the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.classifier import Suspect, named_ranks
from rca.classify.phase_lateness import own_work_is_timed
from rca.features import FeatureSet
from rca.robust import nan_max, nan_mean, nan_median
from rca.whatif.phase_replay import PhaseReplay

#: Own work above peers from here on is a symptom, relative to the step.
OWN_SYMPTOM = 0.02
#: Lateness that makes up for less of what the steps took longer is only what is left of it after the others
#: have met the late one.
MIN_LATENESS_SHARE = 0.5
#: A step that is longer by so many times what the stretch's are is a spike; the job's own come beside the
#: stretch at least so much of as often.
SPIKE, AS_OFTEN = 4.0, 0.5


def priced_by_step_time(
    features: FeatureSet, suspects: Sequence[Suspect], replay: PhaseReplay
) -> tuple[FeatureSet, PhaseReplay]:
    """Features and replay with whole steps for own work, where nothing else can price the suspects.

    Parameters
    ----------
    features : FeatureSet
    suspects : sequence of Suspect
    replay : PhaseReplay

    Returns
    -------
    features : FeatureSet
    replay : PhaseReplay
        Both as given where timers tell, where nobody is suspected, or without quiet steps to compare with.
    """
    segment = features.comparison.segment
    named = named_ranks(suspects)
    if not suspects or segment.whole or timers_can_price(suspects, features):
        return features, replay
    # Who reports no steps took as long as the others.
    step = np.where(np.isfinite(features.work.step), features.work.step, features.work.job_step)
    inside = segment.mask(step.shape[1])
    quiet = np.broadcast_to(nan_median(step[:, ~inside], axis=1)[:, None], step.shape)
    usual = np.fmin(step, quiet)
    longer = np.where(inside, step - usual, 0.0)
    longer *= _beyond_own_spikes(features.work.job_step, inside)
    # Who is not named took as long only because of who is; a link is everybody's while collectives last.
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
    """Whether timers tell what the suspects themselves take longer, in whole or phase by phase."""
    return own_work_is_timed(named_ranks(suspects), features) or _phases_can_price(suspects, features)


def _beyond_own_spikes(step: FloatArray, inside: BoolArray) -> FloatArray:
    """Share of what each step took longer that is the slow stretch's, (n_steps,): of spikes less than 1.

    Checkpoints and evaluations come as often in a slow stretch as beside it, and there they show how long
    they are in themselves: what is left is the stretch's, and as much as of its other steps at least.
    """
    quiet = float(nan_median(step[~inside][:, None])[0])
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
    """Whether phases show what the suspects cost: above their peers', or, where all are meant, at all.

    Not if they became late with the slow stretch, and that is only a part of what its steps took longer.
    Ranks that meet several times within a phase are all late in it, and nobody by as much as he costs.
    """
    if features.work.phases and any(suspect.component.scope == "job" for suspect in suspects):
        # Slower collectives may lengthen any phase then, and are not what the phase is for.
        return not all(suspect.by_link for suspect in suspects)
    excess = features.comparison.excess[named_ranks(suspects)]
    if not np.isfinite(excess).any() or np.nanmean(excess) < OWN_SYMPTOM * features.work.step_reference:
        return False
    step = features.work.job_step
    inside = features.comparison.segment.mask(step.size)
    longer = float(nan_mean(step[None, inside], axis=1)[0] - nan_median(step[None, ~inside], axis=1)[0])
    late, before = (float(nan_mean(nan_max(excess[:, part])[None], axis=1)[0]) for part in (inside, ~inside))
    began = late - before >= OWN_SYMPTOM * features.work.step_reference
    return not (began and late < MIN_LATENESS_SHARE * longer)
