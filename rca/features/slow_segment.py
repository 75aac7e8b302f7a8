"""The slow segment: the contiguous steps in which the job was slow. Features compare inside with outside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.late_episodes import LateEpisodes, capped_lateness, late_threshold
from rca.features.work import Work
from rca.high_segment import MIN_SEGMENT_STEPS, Segment, high_segment
from rca.robust import nan_max, nan_mean, nan_median, nan_quantile

#: Smallest change of the step time that makes a segment, as a share of the usual step.
MIN_RELATIVE_CHANGE = 0.04
#: A segment found in lateness or transfer must lengthen the job's steps by this share of the usual step.
MIN_STEP_GROWTH = 0.03
#: Smallest contrast of a slow segment, in standard errors. It is high because many intervals are tried.
MIN_SEGMENT_Z = 9.0
#: A unit (rank, node or stage) outweighs a segment when its lateness costs this many times more outside the
#: segment than the job loses in the segment.
OUTWEIGHED_RATIO = 3.0
#: ... unless a unit that is newly late in the segment causes this share of the loss there.
NEWLY_LATE_SHARE = 0.5
#: A unit is newly late if its cost outside is below this share of the costliest unit's cost outside.
NEWLY_LATE_MAX_OUTSIDE = 0.5
#: An episode replaces the segment when the job loses this many times more in the episode's steps.
EPISODE_LOSS_RATIO = 2.0
#: Without another change, lateness outside the episode must be at most this share of the lateness inside.
MAX_OUTSIDE_LATENESS = 0.25
#: Cost of the episodes that are considered, as a share of the costliest one's cost.
MIN_EPISODE_COST_SHARE = 1.0 / 3.0
#: Quantile of a rank's excess outside an episode that counts as permanent lateness.
PERMANENT_QUANTILE = 0.25


def segment_mean(values: FloatArray, inside: BoolArray) -> FloatArray:
    """Mean of each row over the columns inside, ignoring NaN; shape (n_rows,)."""
    return nan_mean(values[:, inside], axis=1)


def find_slow_segment(
    work: Work, excess: FloatArray, gains: Sequence[FloatArray], episodes: LateEpisodes, noise: float
) -> Segment:
    """The steps in which the job was slow.

    1. The first of three series that changes gives the segment: step time, lateness, transfer. Lateness and
       transfer show a fault that another change at the same time hides.
    2. If one unit costs far more outside this segment, the whole window is used.
    3. If the job loses far more in the costliest late episode of a rank, this episode is the segment.

    Parameters
    ----------
    excess : ndarray of shape (n_ranks, n_steps), seconds
        Own work above the reference.
    gains : sequence of ndarray of shape (n_units, n_steps), seconds
        Step time saved without the lateness of each rank, node and stage.
    episodes : LateEpisodes
        Of the same excess.
    noise : float, seconds
        Robust spread of the healthy excess.
    """
    changed = _changed_segment(work, excess)
    if _is_outweighed(changed, gains, work):
        changed = Segment.everything(work.steps.size)
    episode = _costliest_episode(episodes, excess, late_threshold(work.step_reference, noise))
    if episode is None or (changed.whole and not _is_quiet_outside(episode, excess, work.step_reference)):
        return changed
    lost = _lost_seconds(episode, work)
    lengthens = lost >= MIN_STEP_GROWTH * work.step_reference * (episode.last - episode.first + 1)
    outweighs = lost > EPISODE_LOSS_RATIO * max(_lost_seconds(changed, work), 0.0)
    return episode if lengthens and outweighs else changed


def _costliest_episode(episodes: LateEpisodes, excess: FloatArray, late_above: float) -> Segment | None:
    """The costliest episode with enough late steps and enough other steps.

    The episode of a permanently late rank leaves no other steps. Then the next costly episode is tried.
    """
    late = episodes.count(excess > late_above)
    long = (late >= MIN_SEGMENT_STEPS) & (excess.shape[1] - episodes.length >= MIN_SEGMENT_STEPS)
    least_cost = MIN_EPISODE_COST_SHARE * max(float(episodes.cost.max()), np.finfo(float).tiny)
    ranks = np.flatnonzero(long & (episodes.cost >= least_cost))
    costliest_first = ranks[np.argsort(-episodes.cost[ranks], kind="stable")].tolist()
    found = (_episode_segment(rank, episodes, excess, late_above) for rank in costliest_first)
    return next((episode for episode in found if episode is not None), None)


def _episode_segment(
    rank: int, episodes: LateEpisodes, excess: FloatArray, late_above: float
) -> Segment | None:
    """A rank's episode as a segment; None if the rank may be late all along.

    The episode of a rank that is late in every tenth step reaches from the first late step to the last. So
    the steps on one side count as on time only if they are at least the usual gap between late steps.
    """
    first, past, n_steps = int(episodes.first[rank]), int(episodes.past[rank]), excess.shape[1]
    gaps = np.diff(np.flatnonzero(excess[rank, first:past] > late_above))
    usual_gap = np.median(gaps)
    on_time = sum(side for side in (first, n_steps - past) if side >= usual_gap)
    if on_time < MIN_SEGMENT_STEPS:
        return None
    return Segment(first, past - 1, float(np.nanmean(excess[rank, first:past])), 0.0, False)


def _is_quiet_outside(episode: Segment, excess: FloatArray, usual: float) -> bool:
    """Whether lateness that comes and goes is small outside an episode; it is not if stragglers alternate."""
    inside = episode.mask(excess.shape[1])
    permanent = nan_quantile(excess[:, ~inside], PERMANENT_QUANTILE, axis=1)
    lateness = capped_lateness(excess - np.fmax(permanent, 0.0)[:, None], usual)
    return bool(nan_mean(lateness[~inside]) <= MAX_OUTSIDE_LATENESS * nan_mean(lateness[inside]))


def _lost_seconds(segment: Segment, work: Work) -> float:
    """Sum over the segment's steps of the time above the usual step outside it, each up to one usual step."""
    inside = segment.mask(work.job_step.size)
    if segment.whole or inside.all() or not np.isfinite(work.step_reference):
        return 0.0
    usual = nan_median(work.job_step[None, ~inside], axis=1)[0]
    longer = np.clip(work.job_step[inside] - usual, -work.step_reference, work.step_reference)
    return float(np.nansum(longer))


def _changed_segment(work: Work, excess: FloatArray) -> Segment:
    """The high segment of step time, else of lateness or transfer if the job's steps are longer in it."""
    usual = work.step_reference
    if not np.isfinite(usual):
        return Segment.everything(work.steps.size)
    found = [
        high_segment(series, min_z=MIN_SEGMENT_Z, min_contrast=MIN_RELATIVE_CHANGE * usual)
        for series in (work.job_step, nan_max(excess), nan_median(work.transfer))
    ]
    if not found[0].whole:
        return found[0]
    longer = (segment for segment in found[1:] if _lengthens_steps(segment, work.job_step, usual))
    return next(longer, found[0])


def _is_outweighed(segment: Segment, gains: Sequence[FloatArray], work: Work) -> bool:
    """Whether one unit costs far more outside the segment than the whole job loses in it.

    A few long steps of all ranks are a change as well. With these as the segment, a rank that is late in all
    steps would look usual. The unit must be late in most steps outside. One that is late now and then may
    have a fault that began and ended, and the segment may be a part of it.
    """
    inside = segment.mask(work.job_step.size)
    if inside.all():
        return False
    usual = nan_median(work.job_step[None, ~inside], axis=1)[0]
    longer = float(nan_mean((work.job_step[inside] - usual)[:, None])[0])
    outside_costs = _usual_gain(gains, ~inside)
    most = float(outside_costs.max())
    lengthens = most >= MIN_STEP_GROWTH * work.step_reference
    if not lengthens or most * (~inside).sum() <= OUTWEIGHED_RATIO * longer * inside.sum():
        return False
    # A permanently late unit may be later in the segment. Another unit's fault makes its own segment.
    other = outside_costs < NEWLY_LATE_MAX_OUTSIDE * most
    newly = np.where(other, _usual_gain(gains, inside) - outside_costs, 0.0)
    return bool(newly.max() <= NEWLY_LATE_SHARE * longer)


def _usual_gain(gains: Sequence[FloatArray], steps: BoolArray) -> FloatArray:
    """Median gain of every unit over some steps, shape (n_units of all kinds,), seconds."""
    return np.concatenate([np.median(gain[:, steps], axis=1) for gain in gains])


def _lengthens_steps(segment: Segment, job_step: FloatArray, usual: float) -> bool:
    """Whether the job's steps are longer inside the segment; lateness alone may be chance."""
    inside = segment.mask(job_step.size)
    if segment.whole or not (~inside).any():
        return False
    high, low = nan_mean(job_step[inside]), nan_mean(job_step[~inside])
    return bool(high - low >= MIN_STEP_GROWTH * usual)
