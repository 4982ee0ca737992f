"""Naive float64 reference of the eviction formulas: plain loops over tokens and heads, the oracle of the other tests.

Written apart from the package and sharing no code with it. Notation: H KV heads, Hq query heads, G = Hq / H, N prompt
positions, W window positions (the last ones of the prompt), M = N - W candidates, T decoded tokens, D key size, Dv
value size. Arrays are keys [H, N, D], values [H, N, Dv], window queries [Hq, W, D]. Query head h reads KV head h // G.
A higher score means: keep.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# A few units in the last place: differences below it are rounding noise.
_TOLERANCE = 8 * float(np.finfo(np.float64).eps)


def _array(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


def _softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    total = math.fsum(weights)
    return [w / total for w in weights]


def _mean(values: Iterable[float]) -> float:
    listed = [float(v) for v in values]
    return math.fsum(listed) / len(listed)


# Importance.


def window_attention(queries: ArrayLike, keys: ArrayLike, scaling: float) -> Array:
    """Window attention: P [Hq, W, N], the softmax of the window's queries over all N keys.

    Window row t sits at position p = N - W + t and sees the keys 0 .. p; later keys have probability 0.
    Each row sums to 1, window keys included.
    """
    q, k = _array(queries), _array(keys)
    (heads, window, _), (kv_heads, tokens, _) = q.shape, k.shape
    out = np.zeros((heads, window, tokens))
    for h in range(heads):
        for t in range(window):
            seen = tokens - window + t + 1
            head_keys = k[h // (heads // kv_heads)]
            out[h, t, :seen] = _softmax([scaling * float(q[h, t] @ head_keys[j]) for j in range(seen)])
    return out


def pool(row: Sequence[float], kernel: int, pooling: str) -> list[float]:
    """Pooling of one row of candidates: stride 1, odd kernel.

    avg pads with zeros and always divides by the kernel; max pads with -inf.
    """
    if kernel % 2 != 1:
        raise ValueError(f"the kernel must be odd, found {kernel}")
    half, out = kernel // 2, []
    for j in range(len(row)):
        inside = [float(row[i]) for i in range(j - half, j + half + 1) if 0 <= i < len(row)]
        out.append({"avg": math.fsum(inside) / kernel, "max": max(inside)}[pooling])
    return out


def reduce_attention(
    attention: ArrayLike, kv_heads: int, *, kernel: int = 5, pooling: str = "avg", gqa: str = "mean"
) -> Array:
    """Group reduction and pooling order: P [Hq, W, N] -> A [H, M].

    Mean over the W rows per query head, cut to the M candidates, mean or maximum over the group, then pooling over
    the candidates.
    """
    p = _array(attention)
    heads, window, tokens = p.shape
    group, candidates = heads // kv_heads, tokens - window
    out = np.zeros((kv_heads, candidates))
    for g in range(kv_heads):
        row = []
        for j in range(candidates):
            per_head = [_mean(p[h, t, j] for t in range(window)) for h in range(g * group, (g + 1) * group)]
            row.append({"mean": _mean(per_head), "max": max(per_head)}[gqa])
        out[g] = pool(row, kernel, pooling)
    return out


def snapkv_importance(
    queries: ArrayLike, keys: ArrayLike, scaling: float, *, kernel: int = 5, pooling: str = "avg", gqa: str = "mean"
) -> Array:
    """SnapKV score A [H, M]: window attention, mean over the window rows, group reduction, pooling."""
    attention = window_attention(queries, keys, scaling)
    return reduce_attention(attention, _array(keys).shape[0], kernel=kernel, pooling=pooling, gqa=gqa)


def norms(vectors: ArrayLike) -> Array:
    """Euclidean norms over the last axis."""
    v = _array(vectors)
    flat = [math.sqrt(math.fsum(float(x) ** 2 for x in row)) for row in v.reshape(-1, v.shape[-1])]
    return np.array(flat).reshape(v.shape[:-1])


def value_norm(values: ArrayLike) -> Array:
    """Value norm ||v_j|| [H, N]."""
    return norms(values)


# Geometry.


def unit_keys(keys: ArrayLike) -> Array:
    """k / ||k||; a zero key stays the zero vector (its cosine with anything is 0)."""
    k = _array(keys)
    lengths = norms(k)
    out = np.zeros_like(k)
    for at in np.ndindex(lengths.shape):
        if lengths[at] > 0:
            out[at] = k[at] / lengths[at]
    return out


def keydiff_score(keys: ArrayLike) -> Array:
    """KeyDiff score [H, N]: minus the cosine of each key to the mean of the unit keys of all N positions."""
    units = unit_keys(keys)
    out = np.zeros(units.shape[:2])
    for h, head in enumerate(units):
        mean = np.array([_mean(head[:, d]) for d in range(head.shape[1])])
        length = float(norms(mean))
        for j, u in enumerate(head):
            out[h, j] = -float(u @ mean) / length if length > 0 else 0.0
    return out


def pairwise_cosines(head_keys: ArrayLike) -> list[float]:
    """Cosines of all N (N - 1) ordered pairs i != j of one head's keys [N, D]."""
    u = unit_keys(head_keys)
    return [float(u[i] @ u[j]) for i in range(len(u)) for j in range(len(u)) if i != j]


def mean_cosine(keys: ArrayLike) -> Array:
    """Mean off-diagonal cosine [H], brute force over the pairs i != j; 0 for a single key."""
    return np.array([_mean(pairwise_cosines(head) or [0.0]) for head in _array(keys)])


def std_cosine(keys: ArrayLike) -> Array:
    """Population standard deviation [H] of the off-diagonal cosines, brute force; 0 for a single key."""
    out = []
    for head in _array(keys):
        cosines = pairwise_cosines(head) or [0.0]
        centre = _mean(cosines)
        out.append(math.sqrt(_mean((c - centre) ** 2 for c in cosines)))
    return np.array(out)


def centroid(keys: ArrayLike) -> Array:
    """Mean key [H, D] over all N positions."""
    k = _array(keys)
    return np.array([[_mean(head[:, d]) for d in range(k.shape[2])] for head in k])


def distances(keys: ArrayLike) -> Array:
    """Distance of each key to the centroid of all N keys [H, N], by direct difference."""
    return np.array([norms(head - c) for head, c in zip(_array(keys), centroid(keys), strict=True)])


def distance_summary(keys: ArrayLike) -> dict[str, Array]:
    """Mean, root mean square and largest distance to the centroid, each [H]."""
    d = distances(keys)
    return {
        "mean": np.array([_mean(row) for row in d]),
        "rms": np.array([math.sqrt(_mean(x * x for x in row)) for row in d]),
        "max": np.array([max(row) for row in d]),
    }


def pca(points: ArrayLike) -> dict[str, Array | float | None]:
    """PCA of one head's keys [N, D]: eigenvalues of the population covariance, largest first.

    `ratio` is the explained variance ratio, `effective_rank` = exp(-sum p ln p) of the ratios,
    `participation_ratio` = (sum l)^2 / sum l^2.
    All points equal: the last two are undefined (None) and the ratios are zeros.
    """
    x = _array(points)
    mean = [_mean(x[:, d]) for d in range(x.shape[1])]
    covariance = np.zeros((x.shape[1], x.shape[1]))
    for a in range(x.shape[1]):
        for b in range(x.shape[1]):
            covariance[a, b] = _mean((row[a] - mean[a]) * (row[b] - mean[b]) for row in x)
    eigenvalues = np.array([max(float(v), 0.0) for v in np.linalg.eigvalsh(covariance)[::-1]])
    total = math.fsum(eigenvalues)
    if total <= x.shape[1] * (_TOLERANCE * float(np.max(np.abs(x)))) ** 2:
        zeros = np.zeros_like(eigenvalues)
        return {"variance": zeros, "ratio": zeros, "effective_rank": None, "participation_ratio": None}
    ratio = eigenvalues / total
    return {
        "variance": eigenvalues,
        "ratio": ratio,
        "effective_rank": math.exp(-math.fsum(p * math.log(p) for p in ratio if p > 0)),
        "participation_ratio": total**2 / math.fsum(v * v for v in eigenvalues),
    }


# Diversity and mixing.


def minmax(values: ArrayLike, scale: float = 0.0) -> Array:
    """Min-max normalisation of one row to [0, 1].

    A constant row (range within a few ulp of max |x| or of `scale`) gives zeros. `scale` is the size of the numbers
    that `values` were computed from, where that is larger: the distances of equal keys to their mean are rounding
    noise of the keys' own size.
    """
    x = [float(v) for v in _array(values)]
    low, high = min(x), max(x)
    if high - low <= _TOLERANCE * max(abs(low), abs(high), scale):
        return np.zeros(len(x))
    return np.array([(v - low) / (high - low) for v in x])


def rescale(values: ArrayLike, target: float) -> Array:
    """Rescaling to a magnitude: x * target / mean(x); a row of mean 0 (constant before min-max) is left alone."""
    x = _array(values)
    mean = _mean(x)
    return x.copy() if mean == 0 else x * (target / mean)


def _cosine_part(head_keys: Array, candidates: int) -> tuple[Array, Array]:
    units = unit_keys(head_keys)
    mean = np.array([_mean(units[:, d]) for d in range(units.shape[1])])
    # Products of unit vectors carry rounding noise of size 1 ulp of 1 even where they cancel.
    return minmax([-float(units[j] @ mean) for j in range(candidates)], scale=1.0), mean


def mixkv_score(importance: ArrayLike, keys: ArrayLike, values: ArrayLike, window: int) -> dict[str, Array]:
    """MixKV with online redundancy, per head: F = r Dt + (1 - r)(A + Vt), all [H, M].

    C = minmax(-<u_j, ubar>) on the candidates with ubar over all N keys, Dt = C rescaled to mean(A), Vt =
    minmax(||v_j||) rescaled to mean(A), r = mean off-diagonal cosine over all N keys, not clamped. Constant rows
    follow the explicit rule of `minmax`, there is no epsilon.
    """
    a, k, v = _array(importance), _array(keys), _array(values)
    candidates = k.shape[1] - window
    parts: dict[str, list[Array | float]] = {name: [] for name in ("C", "Vt", "I", "r_cos", "F")}
    for h in range(len(k)):
        target = _mean(a[h])
        cosine, _ = _cosine_part(k[h], candidates)
        vt = rescale(minmax(norms(v[h, :candidates])), target)
        r = float(mean_cosine(k[h : h + 1])[0])
        final = r * rescale(cosine, target) + (1 - r) * (a[h] + vt)
        for name, part in zip(parts, (cosine, vt, a[h] + vt, r, final), strict=True):
            parts[name].append(part)
    return {name: np.array(rows) for name, rows in parts.items()}


def bounded_redundancy(distance: float, temperature: float, redundancy_map: str) -> float:
    """Map of a distance to a redundancy: smaller distance, more redundant.

    sigmoid: 1 - sig(d / tau), in (0, 1/2]. In (0, 1]: sigmoid2, twice that; exp, exp(-d / tau); inv, 1 / (1 + d / tau).
    """
    x = distance / temperature
    if redundancy_map == "sigmoid":
        return 1 - 1 / (1 + math.exp(-x))
    if redundancy_map == "sigmoid2":
        return 2 * (1 - 1 / (1 + math.exp(-x)))
    if redundancy_map == "exp":
        return math.exp(-x)
    if redundancy_map == "inv":
        return 1 / (1 + x)
    raise ValueError(f"a distance cannot be mapped by {redundancy_map!r}")


def ecokv_score(
    importance: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    window: int,
    *,
    alpha: float = 0.8,
    beta: float = 0.6,
    redundancy_map: str = "sigmoid",
    avg_domain: str = "all",
    div_scale: str = "attention",
    value_norm: bool = True,
    std: bool = False,
    temperature: float | None = None,
    clamp: str = "r_cos",
) -> dict[str, Array]:
    """ECOKV score, per KV head, with every part of it.

    * E = minmax(||k_j - c||) and C = minmax(-<u_j, ubar>) on the candidates, c and ubar over all N keys
    * S = alpha E + (1 - alpha) C
    * I = A + Vt, Vt = minmax(||v_j||) rescaled to mean(A); I = A without `value_norm`
    * St = S rescaled to mean(A) (`div_scale="attention"`) or to mean(I) ("importance")
    * lambda = beta r_euc + (1 - beta) r_cos, and F = lambda St + (1 - lambda) I
    * r_euc maps the mean distance over `avg_domain` ("all" N positions or the "candidates"), temperature sqrt(D) unless
      given; "minmax" is 1 - mean(E), which lives on the candidates whatever `avg_domain` says
    * r_cos is the mean off-diagonal cosine over all N keys
    * `std`: lambda is r_std alone, the same map of the root mean square distance (not defined for "minmax")
    * `clamp="r_cos"` clamps r_cos to [0, 1] before beta mixes it, "lambda" clamps the mixture only

    Returns E, C, S, Vt, I, F [H, M]; r_cos (unclamped), r_euc, r_std, lambda, lambda_unclamped [H]; centroid,
    unit_mean [H, D]; dist [H, N].
    """
    a, k, v = _array(importance), _array(keys), _array(values)
    tokens, candidates = k.shape[1], k.shape[1] - window
    domain = {"all": tokens, "candidates": candidates}[avg_domain]
    tau = math.sqrt(k.shape[2]) if temperature is None else temperature
    dist, centres = distances(k), centroid(k)
    rows: dict[str, list[Array | float]] = {}
    for h in range(len(k)):
        euclid = minmax(dist[h, :candidates], scale=float(max(norms(k[h]))))
        cosine, unit_mean = _cosine_part(k[h], candidates)
        diversity = alpha * euclid + (1 - alpha) * cosine
        vt = rescale(minmax(norms(v[h, :candidates])), _mean(a[h])) if value_norm else np.zeros(candidates)
        mixed = a[h] + vt
        r_cos = float(mean_cosine(k[h : h + 1])[0])
        rms = math.sqrt(_mean(d * d for d in dist[h, :domain]))
        if redundancy_map == "minmax":
            r_euc, r_std = 1 - _mean(euclid), math.nan
        else:
            r_euc = bounded_redundancy(_mean(dist[h, :domain]), tau, redundancy_map)
            r_std = bounded_redundancy(rms, tau, redundancy_map)
        if std and math.isnan(r_std):
            raise ValueError("the standard deviation has no min-max map")
        unclamped = r_std if std else beta * r_euc + (1 - beta) * r_cos
        weight = min(max(unclamped, 0.0), 1.0)
        if clamp == "r_cos" and not std:
            weight = beta * r_euc + (1 - beta) * min(max(r_cos, 0.0), 1.0)
        scaled = rescale(diversity, {"attention": _mean(a[h]), "importance": _mean(mixed)}[div_scale])
        found: dict[str, Array | float] = {
            "centroid": centres[h],
            "unit_mean": unit_mean,
            "dist": dist[h],
            "E": euclid,
            "C": cosine,
            "S": diversity,
            "Vt": vt,
            "I": mixed,
            "r_cos": r_cos,
            "r_euc": r_euc,
            "r_std": r_std,
            "lambda": weight,
            "lambda_unclamped": unclamped,
            "F": weight * scaled + (1 - weight) * mixed,
        }
        for name, part in found.items():
            rows.setdefault(name, []).append(part)
    return {name: np.array(parts) for name, parts in rows.items()}


# Selection.


def select(scores: ArrayLike, count: int) -> Indices:
    """Positions of the `count` highest scores of each head [H, count], ascending.

    Sorted by (-score, +index): ties go to the lower index. Non-finite scores are refused.
    """
    s = _array(scores)
    if not np.isfinite(s).all():
        raise ValueError("scores must be finite")
    kept = []
    for row in s:
        order = sorted((-score, j) for j, score in enumerate(row))
        kept.append(sorted(j for _, j in order[:count]))
    return np.array(kept, dtype=np.int64).reshape(len(s), min(count, s.shape[1]))


def add_window(kept: ArrayLike, tokens: int, window: int) -> Indices:
    """Kept candidates [H, C] followed by the last W positions: [H, C + W]."""
    return np.array([[*row, *range(tokens - window, tokens)] for row in np.asarray(kept)], dtype=np.int64)


def keep(
    method: str,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    scaling: float,
    *,
    budget: int,
    kernel: int = 5,
    pooling: str = "avg",
    gqa: str = "mean",
    **ecokv_options: Any,
) -> Indices:
    """Kept positions [H, min(budget, N)], ascending, the window's W positions counted in the budget.

    Methods: full, keydiff (no protected window), snapkv, snapkv+mixkv, snapkv+ecokv. N <= budget keeps everything; a
    budget below the window is refused.
    """
    k = _array(keys)
    kv_heads, tokens, _ = k.shape
    window = _array(queries).shape[1]
    if method == "full" or tokens <= budget:
        return np.array([range(tokens)] * kv_heads, dtype=np.int64)
    if method == "keydiff":
        return select(keydiff_score(k), budget)
    if budget < window:
        raise ValueError(f"the budget {budget} is below the window {window}")
    scores = snapkv_importance(queries, k, scaling, kernel=kernel, pooling=pooling, gqa=gqa)
    if method == "snapkv+mixkv":
        scores = mixkv_score(scores, k, values, window)["F"]
    elif method == "snapkv+ecokv":
        scores = ecokv_score(scores, k, values, window, **ecokv_options)["F"]
    elif method != "snapkv":
        raise ValueError(f"unknown method {method!r}")
    return add_window(select(scores, budget - window), tokens, window)


# Fidelity.


def decode_attention(query: ArrayLike, keys: ArrayLike, decode_keys: ArrayLike, step: int, scaling: float) -> Array:
    """Full-cache attention of one decode query [D] over one head's N prompt keys and its decoded keys 0 .. step."""
    seen = [*_array(keys), *_array(decode_keys)[: step + 1]]
    return np.array(_softmax([scaling * float(_array(query) @ key) for key in seen]))


def fidelity(
    decode_queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    decode_keys: ArrayLike,
    decode_values: ArrayLike,
    *,
    kept: Sequence[Iterable[int]],
    scaling: float,
) -> dict[str, Array]:
    """Offline quality on held-out queries, each [H], means over (decode step t, query heads of the group).

    Query t sees all N prompt keys and the decoded keys 0 .. t; after eviction the kept prompt keys and the same
    decoded keys, with the softmax renormalised over what is left. mass = 1 - full-cache attention on evicted prompt
    keys, output_error = ||o - o'|| / ||o||, output_cosine = cos(o, o'). Outputs of length 0 are not provided for.
    """
    q, k, v = _array(decode_queries), _array(keys), _array(values)
    dk, dv = _array(decode_keys), _array(decode_values)
    (heads, steps, _), (kv_heads, tokens, _) = q.shape, k.shape
    group = heads // kv_heads
    out = {name: np.zeros(kv_heads) for name in ("mass", "output_error", "output_cosine")}
    for g in range(kv_heads):
        stay, mass, error, cosine = {int(p) for p in kept[g]}, [], [], []
        for h in range(g * group, (g + 1) * group):
            for t in range(steps):
                p = decode_attention(q[h, t], k[g], dk[g], t, scaling)
                rows = [*v[g], *dv[g, : t + 1]]
                left = [i for i in range(len(rows)) if i >= tokens or i in stay]
                total = math.fsum(p[i] for i in left)
                full = sum(p[i] * rows[i] for i in range(len(rows)))
                less = sum(p[i] / total * rows[i] for i in left)
                mass.append(1 - math.fsum(p[i] for i in range(tokens) if i not in stay))
                error.append(float(norms(full - less) / norms(full)))
                cosine.append(float(full @ less) / float(norms(full) * norms(less)))
        for name, found in zip(out, (mass, error, cosine), strict=True):
            out[name][g] = _mean(found)
    return out


def oracle_score(decode_queries: ArrayLike, keys: ArrayLike, decode_keys: ArrayLike, scaling: float) -> Array:
    """Oracle score [H, N]: mean full-cache attention on prompt key j over (decode step, query heads of the group)."""
    q, k, dk = _array(decode_queries), _array(keys), _array(decode_keys)
    (heads, steps, _), (kv_heads, tokens, _) = q.shape, k.shape
    group = heads // kv_heads
    out = np.zeros((kv_heads, tokens))
    for g in range(kv_heads):
        rows = [
            decode_attention(q[h, t], k[g], dk[g], t, scaling)
            for h in range(g * group, (g + 1) * group)
            for t in range(steps)
        ]
        out[g] = [_mean(row[j] for row in rows) for j in range(tokens)]
    return out


def average_ranks(values: ArrayLike) -> list[float]:
    """Ranks from 1, ties share their mean rank."""
    x = [float(v) for v in _array(values)]
    return [sum(y < v for y in x) + (sum(y == v for y in x) + 1) / 2 for v in x]


def spearman(a: ArrayLike, b: ArrayLike) -> float | None:
    """Spearman's rank correlation: Pearson's correlation of the average ranks; None where a row is constant."""
    ra, rb = average_ranks(a), average_ranks(b)
    da, db = [x - _mean(ra) for x in ra], [x - _mean(rb) for x in rb]
    spread = math.sqrt(math.fsum(x * x for x in da) * math.fsum(x * x for x in db))
    return math.fsum(x * y for x, y in zip(da, db, strict=True)) / spread if spread > 0 else None


def jaccard(a: Iterable[int], b: Iterable[int]) -> float:
    """Overlap of two sets, |a and b| / |a or b|; two empty sets agree (1)."""
    first, second = {int(x) for x in a}, {int(x) for x in b}
    return len(first & second) / len(first | second) if first | second else 1.0
