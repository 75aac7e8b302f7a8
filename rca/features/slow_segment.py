"""The one stretch of steps in which the job was slow, that everything is compared in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.late_episodes import LateEpisodes, capped_lateness, late_from
from rca.features.work import Work
from rca.robust import nan_max, nan_mean, nan_median, nan_quantile

#: Both sides of a change need this many steps, or a hiccup would pass for a phase of the job.
MIN_SEGMENT_STEPS = 4
#: Quantiles the series is clipped at: the high one keeps a short stretch, the low one the extent of a long
#: stretch with a few much higher steps in it.
CEILINGS = (0.98, 0.8)
#: Longer series are averaged down to this many bins before the quadratic search.
MAX_BINS = 160
#: A change of the step time below this share of it is not worth an interval of its own.
MIN_RELATIVE_CHANGE = 0.04
#: A stretch found in lateness or transfer must lengthen the steps by this share to count.
MIN_FELT_CHANGE = 0.03
#: Least evidence (contrast over its standard error) for a stretch; the search looks at many intervals.
MIN_Z = 9.0
#: What one rank, node or stage costs beside a stretch outweighs it from so many times its loss on.
OUTWEIGHED = 3.0
#: A stretch in which another one costs more than beside it, by this share of what is lost, is that one's own.
SOMEBODYS = 0.5
#: ... if he costs less than this share of what the latest does beside it.
LATE_BESIDE = 0.5
#: One rank's own episode is the stretch if the job loses so many times as much in its steps.
COSTLIER = 2.0
#: ... where nothing else changed, only if whoever is last beside it is late by no more than this share.
QUIET = 0.25
#: An episode is worth a look from this share of the costliest one's cost on.
WORTH = 1.0 / 3.0
#: What a rank is late by in its better steps beside an episode, it is late by all along.
ALL_ALONG_QUANTILE = 0.25


@dataclass(frozen=True)
class Segment:
    """The contiguous stretch of columns in which a series is high.

    Attributes
    ----------
    first, last : int
        Column indices, inclusive.
    contrast : float
        Mean inside minus mean outside, in the series' unit.
    z : float
        The contrast in units of its own standard error.
    whole : bool
        True if no change was found and the segment is simply everything.
    """

    first: int
    last: int
    contrast: float
    z: float
    whole: bool

    @classmethod
    def everything(cls, n_columns: int) -> Segment:
        """All columns, where no change is to be told."""
        return cls(0, max(n_columns - 1, 0), 0.0, 0.0, True)

    def mask(self, n_columns: int) -> BoolArray:
        """Boolean array of shape (n_columns,), True inside."""
        inside = np.zeros(n_columns, dtype=bool)
        inside[self.first : self.last + 1] = True
        return inside


def high_segment(series: FloatArray, *, min_z: float = 6.0, min_contrast: float = 0.0) -> Segment:
    """Best two-level fit with one high stretch, by exhaustive search over its ends.

    Parameters
    ----------
    series : ndarray of shape (n_steps,)
        NaN tolerated.
    min_z, min_contrast : float
        Below either, the whole series is returned with ``whole=True``.

    Notes
    -----
    Least squares with one interval: the reduction of the squared error when ``[a, b]`` gets its own
    level is ``contrast**2 * n_in * n_out / n``; values are clipped first so that single spikes weigh
    little. The circular binary segmentation statistic of Olshen et al. (2004) has the same form.
    """
    everything = Segment.everything(series.size)
    if np.isfinite(series).sum() < 2 * MIN_SEGMENT_STEPS:
        return everything
    filled = without_gaps(series)
    candidates = [_fit_interval(_clip_spikes(filled, ceiling)) for ceiling in CEILINGS]
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
    return np.where(np.isfinite(series), series, nan_median(series[None, :], axis=1)[0])


def _clip_spikes(series: FloatArray, ceiling: float) -> FloatArray:
    ordered = np.sort(series)
    low, high = (_at(ordered, share) for share in (0.02, ceiling))
    # A median of three removes single-step spikes but keeps every edge of three steps or more.
    left = np.concatenate([series[:1], series[:-1]])
    right = np.concatenate([series[1:], series[-1:]])
    smooth = np.maximum(np.minimum(left, right), np.minimum(np.maximum(left, right), series))
    clipped: FloatArray = np.clip(smooth, low, high)
    return clipped


def _at(ordered: FloatArray, share: float) -> float:
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
    """All intervals of `n` bins with at least `shortest` inside and outside: first, end, and their weight."""
    first, end = np.triu_indices(n + 1, k=shortest)
    length = end - first
    outside = n - length
    valid = outside >= shortest
    first, end, length, outside = first[valid], end[valid], length[valid], outside[valid]
    return first, end, n / (length * outside)


def segment_mean(values: FloatArray, inside: BoolArray) -> FloatArray:
    """Mean of each row over the columns inside, ignoring NaN; shape (n_rows,)."""
    return nan_mean(values[:, inside], axis=1)


def slow_stretch(
    work: Work, excess: FloatArray, gains: Sequence[FloatArray], episodes: LateEpisodes, noise: float
) -> Segment:
    """The stretch in which the job was slow: by step time, lateness or transfer, or somebody's episode.

    The first of three series that shows a change wins: what the user feels comes first, and the others catch
    a fault that a simultaneous change elsewhere hides. Everything, where somebody's lateness outweighs the
    change. The costliest episode of one rank instead, if the job loses far more in its steps.

    Parameters
    ----------
    work : Work
    excess : ndarray of shape (n_ranks, n_steps), seconds
        Own work above the reference.
    gains : sequence of ndarray of shape (n_units, n_steps), seconds
        Step time saved without the lateness of each rank, node and stage.
    episodes : LateEpisodes
        Of the same excess.
    noise : float, seconds
        Robust spread of the healthy excess.
    """
    changed = _changed_stretch(work, excess)
    if _is_outweighed(changed, gains, work):
        changed = Segment.everything(work.steps.size)
    episode = _worst_episode_of_a_rank(episodes, excess, late_from(work.step_reference, noise))
    if episode is None or (changed.whole and not _is_quiet_beside(episode, excess, work.step_reference)):
        return changed
    lost = _lost(episode, work)
    felt = lost >= MIN_FELT_CHANGE * work.step_reference * (episode.last - episode.first + 1)
    return episode if felt and lost > COSTLIER * max(_lost(changed, work), 0.0) else changed


def _worst_episode_of_a_rank(episodes: LateEpisodes, excess: FloatArray, late_above: float) -> Segment | None:
    """The costliest episode that has enough late steps, and leaves enough of the window.

    Who is late all along leaves nothing beside; the next one may, if it costs enough to be what it is about.
    """
    late = episodes.count(excess > late_above)
    long = (late >= MIN_SEGMENT_STEPS) & (excess.shape[1] - episodes.length >= MIN_SEGMENT_STEPS)
    worth = episodes.cost >= WORTH * max(float(episodes.cost.max()), np.finfo(float).tiny)
    ranks = np.flatnonzero(long & worth)
    costliest_first = ranks[np.argsort(-episodes.cost[ranks], kind="stable")].tolist()
    found = (_spell_of(rank, episodes, excess, late_above) for rank in costliest_first)
    return next((episode for episode in found if episode is not None), None)


def _spell_of(rank: int, episodes: LateEpisodes, excess: FloatArray, late_above: float) -> Segment | None:
    """A rank's episode as a stretch; None where its next late step may only be behind the window's end.

    A rank that is late in every tenth step has an episode from the first of them to the last.
    A side too short for such a period is not enough alone; it is beside the episode nevertheless.
    """
    first, past, n_steps = int(episodes.first[rank]), int(episodes.past[rank]), excess.shape[1]
    gaps = np.diff(np.flatnonzero(excess[rank, first:past] > late_above))
    usual_gap = np.median(gaps)
    beside = sum(side for side in (first, n_steps - past) if side >= usual_gap)
    if beside < MIN_SEGMENT_STEPS:
        return None
    return Segment(first, past - 1, float(np.nanmean(excess[rank, first:past])), 0.0, False)


def _is_quiet_beside(episode: Segment, excess: FloatArray, usual: float) -> bool:
    """Whether little lateness comes and goes beside an episode; alternating stragglers have no stretch."""
    inside = episode.mask(excess.shape[1])
    all_along = nan_quantile(excess[:, ~inside], ALL_ALONG_QUANTILE, axis=1)
    lateness = capped_lateness(excess - np.fmax(all_along, 0.0)[:, None], usual)
    within, beside = nan_mean(lateness[inside]), nan_mean(lateness[~inside])
    return bool(beside <= QUIET * within)


def _lost(segment: Segment, work: Work) -> float:
    """Seconds by which the steps of a stretch are longer than those beside it, each up to a step."""
    inside = segment.mask(work.job_step.size)
    if segment.whole or inside.all() or not np.isfinite(work.step_reference):
        return 0.0
    usual = nan_median(work.job_step[None, ~inside], axis=1)[0]
    longer = np.clip(work.job_step[inside] - usual, -work.step_reference, work.step_reference)
    return float(np.nansum(longer))


def _changed_stretch(work: Work, excess: FloatArray) -> Segment:
    usual = work.step_reference
    if not np.isfinite(usual):
        return Segment.everything(work.steps.size)
    found = [
        high_segment(series, min_z=MIN_Z, min_contrast=MIN_RELATIVE_CHANGE * usual)
        for series in (work.job_step, nan_max(excess), nan_median(work.transfer))
    ]
    if not found[0].whole:
        return found[0]
    felt = (segment for segment in found[1:] if _is_felt(segment, work.job_step, usual))
    return next(felt, found[0])


def _is_outweighed(segment: Segment, gains: Sequence[FloatArray], work: Work) -> bool:
    """Whether the stretch is everybody's, and somebody costs far more beside it than all that is lost in it.

    A few long steps of everybody's are a change, too. Were they the stretch, a rank that is late from the
    first step to the last would count as usual there. He has to be late in most steps beside it: who is only
    now and then may have begun and ended with a fault of which the stretch is a part.
    """
    inside = segment.mask(work.job_step.size)
    if inside.all():
        return False
    usual = nan_median(work.job_step[None, ~inside], axis=1)[0]
    longer = float(nan_mean((work.job_step[inside] - usual)[:, None])[0])
    costs = _usual_gain(gains, ~inside)
    most = float(costs.max())
    felt = most >= MIN_FELT_CHANGE * work.step_reference
    if not felt or most * (~inside).sum() <= OUTWEIGHED * longer * inside.sum():
        return False
    # Who is late all along may well be later in it; somebody else has a stretch of his own.
    newly = np.where(costs < LATE_BESIDE * most, _usual_gain(gains, inside) - costs, 0.0)
    return bool(newly.max() <= SOMEBODYS * longer)


def _is_felt(segment: Segment, job_step: FloatArray, usual: float) -> bool:
    """Whether the job's steps are longer inside the stretch, too; lateness alone may be chance."""
    inside = segment.mask(job_step.size)
    if segment.whole or not (~inside).any():
        return False
    high, low = nan_mean(job_step[inside]), nan_mean(job_step[~inside])
    return bool(high - low >= MIN_FELT_CHANGE * usual)


def _usual_gain(gains: Sequence[FloatArray], steps: BoolArray) -> FloatArray:
    """Median gain of every unit over some steps, seconds, shape (n_units of all kinds,)."""
    return np.concatenate([np.median(gain[:, steps], axis=1) for gain in gains])
