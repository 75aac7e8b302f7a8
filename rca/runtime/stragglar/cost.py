"""Cost of all-reduce algorithms with a late rank, and what StragglAR would save per step.

The alpha-beta model: a message of m bytes takes alpha + m beta seconds. A rank sends one message and receives
one at a time. Times count from the arrival of the last rank, because nothing can end before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput
from rca.runtime.stragglar.schedule import fewest_rounds

Mode = Literal["static", "eager"]
LEVEL = 0.9
_RESAMPLES = 1000
_MIN_STEPS = 5


@dataclass(frozen=True)
class Link:
    """What a message costs.

    Attributes
    ----------
    alpha
        Seconds per message, whatever its size.
    beta
        Seconds per byte: the inverse of the bandwidth in one direction.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        if not (self.alpha >= 0 and self.beta >= 0 and math.isfinite(self.alpha + self.beta)):
            raise InvalidInput(
                f"a link with alpha {self.alpha!r} s and beta {self.beta!r} s per byte is not possible",
                hint="measure both: alpha from tiny messages, beta from large ones",
            )


def ring_seconds(n: int, size: float, link: Link) -> float:
    """Ring all-reduce of `size` bytes: 2(n - 1) messages of size / n."""
    _check(n, size)
    return 2 * (n - 1) * (link.alpha + size / n * link.beta)


def halving_doubling_seconds(n: int, size: float, link: Link) -> float:
    """Recursive halving and doubling. Ranks above a power of two fold into a partner, and copy after."""
    _check(n, size)
    power = 1 << (n.bit_length() - 1)
    folding = 2 * (link.alpha + size * link.beta) if power < n else 0.0
    return 2 * math.log2(power) * link.alpha + 2 * (power - 1) / power * size * link.beta + folding


def direct_seconds(n: int, size: float, link: Link) -> float:
    """One-shot all-reduce: each rank sends its whole tensor to every other one."""
    _check(n, size)
    return (n - 1) * (link.alpha + size * link.beta)


def reduce_scatter_seconds(n: int, size: float, link: Link) -> float:
    """Reduce-scatter of the n - 1 others, while they wait for the straggler."""
    _check(n, size)
    return (n - 2) * (link.alpha + size / (n - 1) * link.beta)


def rounds_seconds(n: int, size: float, link: Link) -> float:
    """Rounds of StragglAR after the straggler's arrival, each with chunks of size / (n - 1)."""
    _check(n, size)
    return fewest_rounds(n) * (link.alpha + size / (n - 1) * link.beta)


def stragglar_seconds(n: int, size: float, link: Link, delay: float) -> float:
    """StragglAR, from the arrival of the last rank.

    Parameters
    ----------
    delay
        Seconds by which the straggler comes after the last of the others. Negative if it is not last: then
        the reduce-scatter begins when the last rank arrives, and nothing is gained.
    """
    rest = max(0.0, reduce_scatter_seconds(n, size, link) - max(0.0, delay))
    return rest + rounds_seconds(n, size, link)


def best_alternative_seconds(n: int, size: float, link: Link) -> float:
    """The fastest of ring, halving and doubling, and one-shot."""
    algorithms = (ring_seconds, halving_doubling_seconds, direct_seconds)
    return min(seconds(n, size, link) for seconds in algorithms)


def break_even_delay(n: int, size: float, link: Link) -> float:
    """Delay in seconds from which StragglAR beats the best alternative; infinite if none is enough."""
    alternative = best_alternative_seconds(n, size, link)
    rounds = rounds_seconds(n, size, link)
    return max(0.0, stragglar_seconds(n, size, link, 0.0) - alternative) if rounds < alternative else math.inf


@dataclass(frozen=True)
class GroupCosts:
    """What both all-reduces cost in a group after the straggler's arrival, by the size of the tensor.

    `rca.runtime.stragglar.measured_costs` measures them. A formula does not know what a program adds.

    Attributes
    ----------
    stragglar, ordinary
        Seconds whatever the size, and seconds per byte of the tensor.
    agreement
        Seconds in which the ranks find out who is last.
    """

    stragglar: Link
    ordinary: Link
    agreement: float = 0.0

    def is_faster(self, size: float) -> bool:
        """Whether StragglAR reduces a tensor of `size` bytes faster, if its straggler is late enough."""
        ours = self.agreement + self.stragglar.alpha + size * self.stragglar.beta
        return ours < self.ordinary.alpha + size * self.ordinary.beta


@dataclass(frozen=True)
class Saving:
    """What StragglAR would save.

    Attributes
    ----------
    seconds, low, high
        Mean seconds saved per step and its 90 % interval; negative if steps become longer.
    share
        `seconds` as a share of the step, or None without the step's length.
    persistence
        Share of steps in which the expected straggler is last; 1 in the eager mode.
    straggler
        Rank expected to be last; None in the eager mode.
    break_even
        Delay in seconds from which one step gains; infinite if none does.
    worth_it
        Whether the whole interval is above zero.
    reason
        Why it is or is not worth it.
    """

    seconds: float
    low: float
    high: float
    share: float | None
    persistence: float
    straggler: int | None
    break_even: float
    worth_it: bool
    reason: str


def predicted_saving(
    arrivals: FloatArray,
    size: float,
    link: Link,
    *,
    mode: Mode = "static",
    exposed: float = 1.0,
    agreement: float = 0.0,
    step_seconds: float | None = None,
) -> Saving:
    """Predict the seconds per step that StragglAR saves against the best alternative.

    The interval is from resampled blocks of consecutive steps. It holds the variation of the delays, not
    errors of the link's two constants.

    Parameters
    ----------
    arrivals : ndarray of shape (n_ranks, n_steps), seconds
        When each rank reached the all-reduce, on one clock, in recent steps.
    size
        Bytes that one step reduces.
    mode
        ``static`` expects the rank that was last most often. ``eager`` takes the rank that is last.
    exposed
        Share of the all-reduce that is not hidden behind computation.
    agreement
        Seconds per step of finding out who is last.
    step_seconds
        Length of a step, for the share.

    Raises
    ------
    InvalidInput
        If the arrivals are not finite, or are fewer than two ranks or five steps.
    """
    found = np.asarray(arrivals, float)
    _check_arrivals(found, exposed, agreement, step_seconds)
    n_ranks = found.shape[0]
    last = found.argmax(axis=0)
    straggler = int(np.bincount(last, minlength=n_ranks).argmax())
    persistence = 1.0 if mode == "eager" else float((last == straggler).mean())
    delays = _eager_delays(found) if mode == "eager" else _delays_of(found, straggler)
    alternative = best_alternative_seconds(n_ranks, size, link)
    taken = np.array([stragglar_seconds(n_ranks, size, link, delay) for delay in delays])
    savings = exposed * (alternative - taken) - agreement
    low, high = _mean_interval(savings)
    mean, break_even = float(savings.mean()), break_even_delay(n_ranks, size, link)
    return Saving(
        mean, low, high,
        None if step_seconds is None else mean / step_seconds,
        persistence,
        None if mode == "eager" else straggler,
        break_even,
        low > 0,
        _reason(mean, low, break_even, persistence, float(np.median(delays)), n_ranks)
        if exposed
        else "the all-reduce is hidden behind computation: nothing can be saved",
    )  # fmt: skip


#: Ranks that arrive within so many seconds of each other arrive together.
SAME_TIME = 1e-9


def _reason(mean: float, low: float, break_even: float, persistence: float, delay: float, n: int) -> str:
    if low > 0:
        return (
            f"the typical delay of {delay * 1e3:.3g} ms is above the break-even of {break_even * 1e3:.3g} ms"
        )
    if math.isinf(break_even):
        return f"with {n} ranks and this size another all-reduce is faster, whatever the delay"
    if delay < -SAME_TIME:
        early = -delay * 1e3
        return f"in the typical step the expected rank is not last: another comes {early:.3g} ms later"
    if delay < break_even:
        return (
            f"the typical delay of {delay * 1e3:.3g} ms is below the break-even of {break_even * 1e3:.3g} ms"
        )
    if mean <= 0:
        return f"the expected rank is last in {persistence:.0%} of the steps: the other steps cost more"
    return "the interval of the saving holds zero: too few steps, or delays that vary too much"


def _delays_of(arrivals: FloatArray, straggler: int) -> FloatArray:
    others = np.delete(arrivals, straggler, axis=0)
    delays: FloatArray = arrivals[straggler] - others.max(axis=0)
    return delays


def _eager_delays(arrivals: FloatArray) -> FloatArray:
    two = np.partition(arrivals, arrivals.shape[0] - 2, axis=0)[-2:]
    delays: FloatArray = two[1] - two[0]
    return delays


def _mean_interval(values: FloatArray) -> tuple[float, float]:
    """Interval of the mean from circular blocks, so that runs of slow steps stay together."""
    count = values.size
    length = max(1, round(math.sqrt(count)))
    starts = np.random.default_rng(0).integers(0, count, (_RESAMPLES, math.ceil(count / length)))
    lengths = np.full(starts.shape[1], length)
    lengths[-1] = count - length * (starts.shape[1] - 1)
    # Sums of blocks are differences of running sums: all positions of all resamples would take gigabytes.
    mean = values.mean()
    running = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[:length]]) - mean)])
    means = mean + (running[starts + lengths] - running[starts]).sum(axis=1) / count
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _check(n: int, size: float) -> None:
    if n < 2:
        raise InvalidInput(f"an all-reduce needs two ranks or more, not {n}", hint="give n >= 2")
    if not (size >= 0 and math.isfinite(size)):
        raise InvalidInput(f"a tensor of {size!r} bytes is not possible", hint="give the size in bytes")


def _check_arrivals(
    arrivals: FloatArray, exposed: float, agreement: float, step_seconds: float | None
) -> None:
    if arrivals.ndim != 2 or arrivals.shape[0] < 2 or arrivals.shape[1] < _MIN_STEPS:
        raise InvalidInput(
            f"arrivals have the shape {arrivals.shape}: no delay can be learned from them",
            hint=f"give at least two ranks and {_MIN_STEPS} steps, as an array (n_ranks, n_steps)",
        )
    if not np.isfinite(arrivals).all():
        raise InvalidInput("arrivals hold values that are not finite", hint="leave these steps out")
    if not 0 <= exposed <= 1:
        raise InvalidInput(f"the exposed share is {exposed!r}", hint="give a share between 0 and 1")
    if not agreement >= 0:
        raise InvalidInput(f"the agreement takes {agreement!r} s", hint="give zero or more")
    if step_seconds is not None and not step_seconds > 0:
        raise InvalidInput(f"a step of {step_seconds!r} s is not possible", hint="give seconds above zero")
