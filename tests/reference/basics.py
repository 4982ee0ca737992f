"""What every rule needs: float64 arrays, exact sums, softmax, norms, order statistics and the order of scores."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# A few units in the last place: differences below it are rounding noise.
TOLERANCE = 8 * float(np.finfo(np.float64).eps)


def array(values: ArrayLike) -> Array:
    """The values as float64."""
    return np.asarray(values, dtype=np.float64)


def softmax(logits: Sequence[float]) -> list[float]:
    """exp(x) / sum exp(x), the largest logit taken off first."""
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    total = math.fsum(weights)
    return [w / total for w in weights]


def mean(values: Iterable[float]) -> float:
    """Mean of the values, summed without rounding."""
    listed = [float(v) for v in values]
    return math.fsum(listed) / len(listed)


def constant(values: Iterable[float], scale: float = 0.0) -> bool:
    """Whether the range is rounding noise: within a few ulp of max |x|, or of `scale` where that is larger."""
    x = [float(v) for v in values]
    return max(x) - min(x) <= TOLERANCE * max(abs(min(x)), abs(max(x)), scale)


def norms(vectors: ArrayLike) -> Array:
    """Euclidean norms over the last axis."""
    v = array(vectors)
    flat = [math.sqrt(math.fsum(float(x) ** 2 for x in row)) for row in v.reshape(-1, v.shape[-1])]
    return np.array(flat).reshape(v.shape[:-1])


def quantile(values: ArrayLike, share: float) -> float:
    """Quantile with linear interpolation: the sorted values at the real index share * (n - 1)."""
    x = sorted(float(v) for v in array(values))
    at = share * (len(x) - 1)
    below = math.floor(at)
    above = min(below + 1, len(x) - 1)
    return x[below] + (at - below) * (x[above] - x[below])


def median(values: ArrayLike) -> float:
    """The middle value; the mean of the two middle ones where their number is even."""
    x = sorted(float(v) for v in array(values))
    return (x[(len(x) - 1) // 2] + x[len(x) // 2]) / 2


def best_first(scores: ArrayLike) -> list[int]:
    """Indices by falling score; ties go to the lower index."""
    x = [float(score) for score in array(scores)]
    return sorted(range(len(x)), key=lambda j: (-x[j], j))
