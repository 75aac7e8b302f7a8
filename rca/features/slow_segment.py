"""The slow segment: the contiguous steps in which the job was slow. All features compare inside with outside.

`high_segment` finds one high interval in any series of steps. `find_slow_segment` applies it to the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.late_episodes import LateEpisodes, capped_lateness, late_threshold
from rca.features.work import Work
from rca.robust import nan_max, nan_mean, nan_median, nan_quantile

#: Steps that a segment has at least, inside and outside. Shorter changes are hiccups.
MIN_SEGMENT_STEPS = 4
#: Quantiles at which the series is clipped. The high one keeps a short segment. The low one keeps the extent
#: of a long segment in which a few steps are much higher.
CLIP_QUANTILES = (0.98, 0.8)
#: Longer series are averaged into this many bins before the quadratic search.
MAX_BINS = 160
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


@dataclass(frozen=True)
class Segment:
    """The contiguous columns in which a series is high.

    Attributes
    ----------
    first, last : int
        Column indices, inclusive.
    contrast : float
        Mean inside minus mean outside, in the series' unit.
    z : float
        The contrast in units of its own standard error.
    whole : bool
        True if no change was found. Then the segment holds all columns.
    """

    first: int
    last: int
    contrast: float
    z: float
    whole: bool

    @classmethod
    def everything(cls, n_columns: int) -> Segment:
        """All columns: no change was found."""
        return cls(0, max(n_columns - 1, 0), 0.0, 0.0, True)

    def mask(self, n_columns: int) -> BoolArray:
        """Boolean array of shape (n_columns,), True inside."""
        inside = np.zeros(n_columns, dtype=bool)
        inside[self.first : self.last + 1] = True
        return inside


def high_segment(series: FloatArray, *, min_z: float = 6.0, min_contrast: float = 0.0) -> Segment:
    """Best two-level fit with one high interval, by exhaustive search over its ends.

    Parameters
    ----------
    series : ndarray of shape (n_steps,)
        NaN tolerated.
    min_z, min_contrast : float
        Below either, the result holds the whole series, with ``whole=True``.

    Notes
    -----
    This is least squares with one interval. Giving ``[a, b]`` its own level reduces the squared error by
    ``contrast**2 * n_in * n_out / n``. Values are clipped first, so that single spikes weigh little. The
    statistic of circular binary segmentation has the same form (Olshen et al., Biostatistics, 2004).
    """
    everything = Segment.everything(series.size)
    if np.isfinite(series).sum() < 2 * MIN_SEGMENT_STEPS:
        return everything
    filled = without_gaps(series)
    candidates = [_fit_interval(_clip_spikes(filled, quantile)) for quantile in CLIP_QUANTILES]
    strong = [found for found in candidates if found.z >= min_z and found.contrast >= min_contrast]
    return max(strong, key=lambda found: found.z, default=everything)


def _fit_interval(clipped: FloatArray) -> Segment:
    n = clipped.size
    everything = Segment.everything(n)
    width = -(-n // MAX_BINS)
    bins = _bin(clipped, width)
    first, last = _best_interval(bins, max(1, -(-MIN_SEGMENT_STEPS // width)))
    if last < first:
        return everything
    first, last = first * width, min((last + 1) * width, n) - 1
    inside = np.zeros(n, dtype=bool)
    inside[first : last + 1] = True
    high, low = clipped[inside], clipped[~inside]
    if low.size == 0:
        return everything
    contrast = float(high.mean() - low.mean())
    spread = np.sqrt(high.var() / high.size + low.var() / low.size)
    return Segment(first, last, contrast, contrast / max(float(spread), 1e-12), False)


def without_gaps(series: FloatArray) -> FloatArray:
    """The series with its median in place of NaN."""
    return np.where(np.isfinite(series), series, nan_median(series[None, :], axis=1)[0])


def _clip_spikes(series: FloatArray, quantile: float) -> FloatArray:
    ordered = np.sort(series)
    low, high = (_sorted_quantile(ordered, share) for share in (0.02, quantile))
    # A median of three removes single-step spikes and keeps every edge of three steps or more.
    left = np.concatenate([series[:1], series[:-1]])
    right = np.concatenate([series[1:], series[-1:]])
    smooth = np.maximum(np.minimum(left, right), np.minimum(np.maximum(left, right), series))
    clipped: FloatArray = np.clip(smooth, low, high)
    return clipped


def _sorted_quantile(ordered: FloatArray, share: float) -> float:
    """Quantile of sorted values, linear interpolation."""
    position = share * (ordered.size - 1)
    index = int(position)
    following = min(index + 1, ordered.size - 1)
    return float(ordered[index] + (ordered[following] - ordered[index]) * (position - index))


def _bin(series: FloatArray, width: int) -> FloatArray:
    if width == 1:
        return series
    n_bins = -(-series.size // width)
    padded = np.pad(series, (0, n_bins * width - series.size), mode="edge")
    result: FloatArray = padded.reshape(n_bins, width).mean(axis=1)
    return result


def _best_interval(bins: FloatArray, shortest: int) -> tuple[int, int]:
    centred = bins - bins.mean()
    cumulative = np.concatenate([[0.0], np.cumsum(centred)])
    first, end, weight = _intervals(bins.size, shortest)
    if first.size == 0:
        return 0, -1
    total = cumulative[end] - cumulative[first]
    gain = np.where(total > 0, total * total * weight, -np.inf)
    best = int(gain.argmax())
    if not np.isfinite(gain[best]):
        return 0, -1
    return int(first[best]), int(end[best]) - 1


@lru_cache(maxsize=32)
def _intervals(n: int, shortest: int) -> tuple[IntArray, IntArray, FloatArray]:
    """First bin, end bin and weight of all intervals with at least `shortest` of `n` bins in and outside."""
    first, end = np.triu_indices(n + 1, k=shortest)
    length = end - first
    outside = n - length
    valid = outside >= shortest
    first, end, length, outside = first[valid], end[valid], length[valid], outside[valid]
    return first, end, n / (length * outside)


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
