"""A selection inspired by RetentiveKV: evicted tokens leave a trace in a state of fixed size. One KV head at a time."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, best_first, constant, mean, softmax
from reference.normalisation import minmax


@dataclass(frozen=True)
class Retained:
    """What is left of one KV head: kept positions (ascending) and the state of the evicted candidates.

    alpha, entropy and score [M], state S [D, Dv], normaliser z [D], evicted mass g.
    """

    kept: list[int]
    alpha: Array
    entropy: Array
    score: Array
    state: Array
    normaliser: Array
    mass: float


def column_entropy(column: ArrayLike) -> float:
    """-sum p log p / log T of a column of T rows normalised to sum 1: 0 for one peak, 1 for a constant column.

    T = 1 and a column of zeros give 0.
    """
    x = [float(v) for v in array(column)]
    total = math.fsum(x)
    if len(x) == 1 or total == 0:
        return 0.0
    if constant(x):
        return 1.0
    entropy = -math.fsum(v / total * math.log(v / total) for v in x if v > 0) / math.log(len(x))
    return min(entropy, 1.0)  # rounding must not make the gate 1 - H negative


def given_entropy(attention: ArrayLike) -> Array:
    """For each candidate of [W, M]: mean over the rows of -sum_i r_i log r_i / log M, r the row by its sum, weighted by
    what each row gives it. One candidate alone, or one that gets nothing: 0."""
    rows = [[float(x) for x in row] for row in array(attention)]
    count = len(rows[0])
    if count == 1:
        return np.zeros(1)
    spread = [-math.fsum(x / s * math.log(x / s) for x in row if x > 0) for row in rows for s in [math.fsum(row)]]
    out = []
    for j in range(count):
        got = math.fsum(row[j] for row in rows)
        weighted = math.fsum(row[j] * e for row, e in zip(rows, spread, strict=True)) / math.log(count)
        out.append(min(weighted / got, 1.0) if got > 0 else 0.0)
    return np.array(out)


def feature(vector: ArrayLike) -> Array:
    """phi(x) = elu(x) + 1 per coordinate: x + 1 above 0, exp(x) below; always positive."""
    return np.array([x + 1 if x > 0 else math.exp(x) for x in array(vector)])


def state_tokens(key_size: int, value_size: int) -> int:
    """Budget taken by the state: its D Dv + D numbers in tokens of D + Dv numbers, rounded up."""
    return math.ceil((key_size * value_size + key_size) / (key_size + value_size))


def retain(
    attention: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    budget: int,
    window: int,
    weight: float,
    *,
    entropies: str = "received",
    order: str = "position",
) -> Retained:
    """Select and compress one KV head, from its window attention [W, M or more] (mean over its group, no pooling).

    alpha_j = mean over the rows, H_j = entropy of the column, R = l minmax(alpha) + (1 - l) minmax(H) on the M = N -
    `window` candidates. The budget pays for the window, the state and the best of R. Each evicted candidate, in rising
    position: S <- H_j S + (1 - H_j) phi(k_j)^T v_j and z <- H_j z + (1 - H_j) phi(k_j). g = sum of their alpha.
    N <= budget evicts nothing. `entropies="given"`: H by `given_entropy`. `order="retention"`: evicted in rising R.
    """
    k, v = array(keys), array(values)
    tokens, candidates = len(k), len(k) - window
    columns = array(attention).T[:candidates]
    alpha = np.array([mean(column) for column in columns])
    entropy = np.array([column_entropy(column) for column in columns])
    if entropies == "given":
        entropy = given_entropy(columns.T)
    score = weight * minmax(alpha) + (1 - weight) * minmax(entropy)
    free = candidates if tokens <= budget else budget - window - state_tokens(k.shape[1], v.shape[1])
    if free < 0:
        raise ValueError(f"the budget {budget} does not pay for the window and the state")
    stay = set(best_first(score)[:free])
    state, normaliser = np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1])
    evicted = [j for j in range(candidates) if j not in stay]
    if order == "retention":
        evicted.sort(key=lambda j: (score[j], j))
    for j in evicted:
        state = entropy[j] * state + (1 - entropy[j]) * np.outer(feature(k[j]), v[j])
        normaliser = entropy[j] * normaliser + (1 - entropy[j]) * feature(k[j])
    kept = [*sorted(stay), *range(candidates, tokens)]
    return Retained(kept, alpha, entropy, score, state, normaliser, math.fsum(alpha[j] for j in evicted))


def retentive_output(
    query: ArrayLike, left_keys: ArrayLike, left_values: ArrayLike, found: Retained, scaling: float
) -> Array:
    """Output [Dv] for a query [D]: (1 - g) softmax attention over what is left + g phi(q) S / (phi(q) z).

    `left_keys` and `left_values` are the kept prompt tokens and whatever was decoded since. Where phi(q) z = 0 (and
    where nothing was evicted) g counts as 0.
    """
    q, rows = array(query), array(left_values)
    weights = softmax([scaling * float(q @ key) for key in array(left_keys)])
    exact = sum(w * row for w, row in zip(weights, rows, strict=True))
    divisor = float(feature(q) @ found.normaliser)
    if divisor == 0:
        return np.array(exact)
    return (1 - found.mass) * exact + found.mass * (feature(q) @ found.state) / divisor
