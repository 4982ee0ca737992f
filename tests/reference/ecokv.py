"""The ECOKV score with all its readings."""

import math

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, mean, norms
from reference.boosters import cosine_part, euclid_part
from reference.geometry import centroid, distances, mean_cosine
from reference.normalisation import minmax, rescale


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
    normalisation: str = "minmax",
) -> dict[str, Array]:
    """ECOKV score, per KV head, with every part of it.

    * E = normalised ||k_j - c|| and C = normalised -<u_j, ubar> on the candidates, c and ubar over all N keys; both
      by `normalisation` (minmax, clipped or robust)
    * S = alpha E + (1 - alpha) C
    * I = A + Vt, Vt = minmax(||v_j||) rescaled to mean(A); I = A without `value_norm`
    * St = S rescaled to mean(A) (`div_scale="attention"`) or to mean(I) ("importance")
    * lambda = beta r_euc + (1 - beta) r_cos, and F = lambda St + (1 - lambda) I
    * r_euc maps the mean distance over `avg_domain` ("all" N positions or the "candidates"), temperature sqrt(D) unless
      given; "minmax" is 1 - mean(minmax(||k_j - c||)) on the candidates, whatever the other options say
    * r_cos is the mean off-diagonal cosine over all N keys
    * `std`: lambda is r_std alone, the same map of the root mean square distance (not defined for "minmax")
    * `clamp="r_cos"` clamps r_cos to [0, 1] before beta mixes it, "lambda" clamps the mixture only

    Returns E, C, S, Vt, I, F [H, M]; r_cos (unclamped), r_euc, r_std, lambda, lambda_unclamped [H]; centroid,
    unit_mean [H, D]; dist [H, N].
    """
    a, k, v = array(importance), array(keys), array(values)
    tokens, candidates = k.shape[1], k.shape[1] - window
    domain = {"all": tokens, "candidates": candidates}[avg_domain]
    tau = math.sqrt(k.shape[2]) if temperature is None else temperature
    dist, centres = distances(k), centroid(k)
    rows: dict[str, list[Array | float]] = {}
    for h in range(len(k)):
        euclid = euclid_part(k[h], candidates, normalisation)
        cosine, unit_mean = cosine_part(k[h], candidates, normalisation)
        diversity = alpha * euclid + (1 - alpha) * cosine
        vt = rescale(minmax(norms(v[h, :candidates])), mean(a[h])) if value_norm else np.zeros(candidates)
        mixed = a[h] + vt
        r_cos = float(mean_cosine(k[h : h + 1])[0])
        rms = math.sqrt(mean(d * d for d in dist[h, :domain]))
        if redundancy_map == "minmax":
            r_euc, r_std = 1 - mean(euclid_part(k[h], candidates)), math.nan
        else:
            r_euc = bounded_redundancy(mean(dist[h, :domain]), tau, redundancy_map)
            r_std = bounded_redundancy(rms, tau, redundancy_map)
        if std and math.isnan(r_std):
            raise ValueError("the standard deviation has no min-max map")
        unclamped = r_std if std else beta * r_euc + (1 - beta) * r_cos
        weight = min(max(unclamped, 0.0), 1.0)
        if clamp == "r_cos" and not std:
            weight = beta * r_euc + (1 - beta) * min(max(r_cos, 0.0), 1.0)
        scaled = rescale(diversity, {"attention": mean(a[h]), "importance": mean(mixed)}[div_scale])
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
