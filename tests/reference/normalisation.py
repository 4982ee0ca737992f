"""Normalisations of one row of scores to a common range, and rescaling to a magnitude."""

import math

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, constant, mean, median, quantile


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


def normalise(values: ArrayLike, kind: str, scale: float = 0.0) -> Array:
    """One row by `kind`: minmax, clipped or robust; all rise with the values, stay in [0, 1], send constants to 0."""
    return {"minmax": minmax, "clipped": clipped_minmax, "robust": robust}[kind](values, scale)


def rescale(values: ArrayLike, target: float) -> Array:
    """Rescaling to a magnitude: x * target / mean(x); a row of mean 0 (constant before min-max) is left alone."""
    x = array(values)
    centre = mean(x)
    return x.copy() if centre == 0 else x * (target / centre)
