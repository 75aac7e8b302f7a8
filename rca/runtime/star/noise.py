"""Gradient noise scale: how many samples an update can use, from gradients of two batch sizes.

The squared length of a gradient of B samples is, on average, ``|G|^2 + tr(Sigma) / B``: the true gradient and
the noise of the samples. Two batch sizes give two equations. Both solutions are unbiased. Their ratio, the
noise scale ``tr(Sigma) / |G|^2``, is not; so the two are averaged over steps before they are divided.

In data-parallel training the small batch is that of one rank, and the large one is that of all ranks. Both
gradients exist in every step, before and after the all-reduce.

References
----------
.. [1] McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv 1812.06162, appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import FloatArray
from rca.errors import InvalidInput

_DRAWS = 1000


@dataclass(frozen=True)
class NoiseScale:
    """Estimate from several steps.

    Attributes
    ----------
    signal : float
        Squared length of the true gradient.
    noise : float
        Trace of the covariance of the gradients of single samples.
    low, high : float
        90 % bootstrap interval of the scale over steps, samples; `high` may be infinite.
    """

    signal: float
    noise: float
    low: float
    high: float

    @property
    def samples(self) -> float | None:
        """The noise scale in samples. None if the gradient is within the noise: take more steps."""
        return _ratio(self.signal, self.noise)


def signal_and_noise(
    small_squared: FloatArray | float, large_squared: FloatArray | float, small: float, large: float
) -> tuple[FloatArray, FloatArray]:
    """Unbiased estimates of the squared true gradient and of the noise of one sample.

    Parameters
    ----------
    small_squared, large_squared : float or ndarray
        Squared lengths of mean gradients over `small` and `large` samples. Averages over several small
        batches are welcome: they lower the variance.
    small, large : float
        Samples of each mean.

    Returns
    -------
    signal, noise : ndarray
        Single steps may give negative values. Average them over steps before use.

    Raises
    ------
    InvalidInput
        If the batches are not positive and of different size, or a length is negative or not finite.
    """
    if not (np.isfinite(small) and np.isfinite(large) and 0 < small < large):
        raise InvalidInput(
            f"batches of {small} and {large} samples give no noise scale",
            hint="compare the gradient of one rank with the average over several ranks",
        )
    below, above = np.asarray(small_squared, dtype=np.float64), np.asarray(large_squared, dtype=np.float64)
    if not (np.isfinite(below) & (below >= 0)).all() or not (np.isfinite(above) & (above >= 0)).all():
        raise InvalidInput("the squared length of a gradient is negative or not finite")
    signal = (large * above - small * below) / (large - small)
    noise = (below - above) / (1.0 / small - 1.0 / large)
    return np.asarray(signal), np.asarray(noise)


def noise_scale(
    small_squared: FloatArray, large_squared: FloatArray, small: float, large: float, *, seed: int = 0
) -> NoiseScale:
    """The noise scale over some steps of one phase of training, with an interval.

    Parameters
    ----------
    small_squared, large_squared : ndarray of shape (n_steps,)
        As for `signal_and_noise`.
    seed : int
        Of the bootstrap.

    Raises
    ------
    InvalidInput
        If there are fewer than two steps, or as in `signal_and_noise`.
    """
    signal, noise = signal_and_noise(small_squared, large_squared, small, large)
    if signal.ndim != 1 or signal.size < 2:
        raise InvalidInput("a noise scale needs two steps or more")
    drawn = np.random.default_rng(seed).integers(0, signal.size, (_DRAWS, signal.size))
    signals, noises = signal[drawn].mean(axis=1), noise[drawn].mean(axis=1)
    # A draw without signal is one in which any number of samples helps.
    scales = np.full(_DRAWS, np.inf)
    np.divide(np.maximum(noises, 0.0), signals, out=scales, where=signals > 0)
    low, high = np.quantile(scales, [0.05, 0.95], method="nearest")
    return NoiseScale(float(signal.mean()), float(noise.mean()), float(low), float(high))


def _ratio(signal: float, noise: float) -> float | None:
    return max(noise, 0.0) / signal if signal > 0 else None
