"""Normalisations of one row of scores to a common range, and rescaling to a magnitude."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, constant, mean, median, quantile, softmax


def minmax(values: ArrayLike, scale: float = 0.0) -> Array:
    """Min-max normalisation of one row to [0, 1].

    A constant row (range within a few ulp of max |x| or of `scale`) gives zeros. `scale` is the size of the numbers
    that `values` were computed from, where that is larger: the distances of equal keys to their mean are rounding
    noise of the keys' own size.
    """
    x = [float(v) for v in array(values)]
    low, high = min(x), max(x)
    if constant(x, scale):
        return np.zeros(len(x))
    return np.array([(v - low) / (high - low) for v in x])


def clipped_minmax(values: ArrayLike, scale: float = 0.0) -> Array:
    """Min-max of the row clipped to its own 1st and 99th percentile (linear interpolation): few outliers, no squeeze.

    Zeros where the clipped row is constant.
    """
    low, high = quantile(values, 0.01), quantile(values, 0.99)
    return minmax([min(max(float(v), low), high) for v in array(values)], scale)


def robust(values: ArrayLike, scale: float = 0.0) -> Array:
    """Robust normalisation: logistic((x - median) / IQR), IQR = 75th - 25th percentile (linear interpolation).

    An IQR of 0 (as near as rounding tells) falls back to min-max, a constant row to zeros.
    """
    x = [float(v) for v in array(values)]
    quartiles = quantile(x, 0.25), quantile(x, 0.75)
    # The size of the row's numbers, so that the quartiles are called equal by the same measure as the whole row.
    size = max(scale, *(abs(v) for v in x))
    if constant(x, scale) or constant(quartiles, size):
        return minmax(x, scale)
    middle, spread = median(x), quartiles[1] - quartiles[0]
    return np.array([logistic((v - middle) / spread) for v in x])


def logistic(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def zscore(values: ArrayLike, scale: float = 0.0) -> Array:
    """Numbers of standard deviations (population) above the lowest; a constant row gives zeros."""
    x = [float(v) for v in array(values)]
    if constant(x, scale):
        return np.zeros(len(x))
    centre = mean(x)
    deviation = math.sqrt(mean((v - centre) ** 2 for v in x))
    return np.array([(v - min(x)) / deviation for v in x])


def ranks(values: ArrayLike, scale: float = 0.0) -> Array:
    """For each value the share of the other values below it, those equal to it counting half; a constant row: zeros."""
    x = [float(v) for v in array(values)]
    if constant(x, scale):
        return np.zeros(len(x))
    below = [sum(w < v for w in x) + (sum(w == v for w in x) - 1) / 2 for v in x]
    return np.array([count / (len(x) - 1) for count in below])


def softmaxed(values: ArrayLike, scale: float = 0.0) -> Array:
    """Softmax of the row; a constant row gives zeros."""
    x = [float(v) for v in array(values)]
    return np.zeros(len(x)) if constant(x, scale) else np.array(softmax(x))


def normalise(values: ArrayLike, kind: str, scale: float = 0.0) -> Array:
    """One row by `kind`; all rise with the values, are not negative and send constants to 0."""
    kinds = {
        "minmax": minmax, "clipped": clipped_minmax, "robust": robust, "zscore": zscore, "rank": ranks,
        "softmax": softmaxed,
    }  # fmt: skip
    return kinds[kind](values, scale)


def rescale(values: ArrayLike, target: float, size: Callable[[Array], float] = mean) -> Array:
    """Rescaling to a magnitude: x * target / size(x), the size by default the mean.

    A row of no positive size (constant before min-max) is left alone.
    """
    x = array(values)
    own = size(x)
    return x * (target / own) if own > 0 else x.copy()
