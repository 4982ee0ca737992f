"""The ECOKV score with all its readings."""

import math

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, mean, norms
from reference.boosters import cosine_part, euclid_part
from reference.geometry import coordinate_spread, distances, mean_cosine
from reference.normalisation import minmax, rescale


def bounded_redundancy(distance: float, temperature: float, redundancy_map: str) -> float:
    """Map of a distance to a redundancy: smaller distance, more redundant.

    sigmoid: 1 - sig(d / tau), in (0, 1/2]. In (0, 1]: sigmoid2, twice that; exp, exp(-d / tau); inv, 1 / (1 + d / tau).
    centred: 1 - sig(d / tau - 1).
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
    if redundancy_map == "centred":
        return 1 - 1 / (1 + math.exp(1 - x))
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
    std_of: str = "distances",
    ddof: int = 0,
    centroid: str = "all",
    norm_domain: str = "candidates",
    cosine: str = "normalised",
    unit_mean: bool = True,
    scale_parts: bool = False,
    level: str = "head",
) -> dict[str, Array]:
    """ECOKV score, per KV head, with every part of it.

    * E = normalised ||k_j - c|| and C = normalised -<u_j, ubar> on the candidates, or their part of what is normalised
      over `norm_domain="all"`; ubar over all N keys, c over `centroid`; both by `normalisation`
    * C is otherwise -cos ("negative"), (1 - cos) / 2 ("half") or 1 - cos ("distance") with cos = cos(k_j, ubar), or
      <u_j, ubar> without `unit_mean`
    * S = alpha E + (1 - alpha) C
    * I = A + Vt, Vt = minmax(||v_j||) rescaled to mean(A); I = A without `value_norm`
    * St = S rescaled to mean(A) (`div_scale="attention"`) or to mean(I) ("importance"), or max(S) to max(A) ("max");
      with `scale_parts` E and C are rescaled and then mixed
    * lambda = beta r_euc + (1 - beta) r_cos, and F = lambda St + (1 - lambda) I
    * r_euc maps the mean distance over `avg_domain` ("all" N positions or the "candidates"), temperature sqrt(D) unless
      given; "minmax" is 1 - mean(minmax(||k_j - c||)) on the candidates, whatever `avg_domain` says
    * r_cos is the mean off-diagonal cosine over all N keys
    * `std`: lambda is r_std alone, the same map of the spread of `avg_domain` (not defined for "minmax"): the root
      mean square distance, or as in `coordinate_spread`, divided by the count less `ddof`
    * `clamp="r_cos"` clamps r_cos to [0, 1] before beta mixes it, "lambda" clamps the mixture only, "none" nothing
    * `level="layer"`: lambda of every head is the mean over the heads

    Returns E, C, S, Vt, I, F [H, M]; r_cos (unclamped), r_euc, r_std, lambda, lambda_unclamped [H]; centroid,
    unit_mean [H, D]; dist [H, N].
    """
    a, k, v = array(importance), array(keys), array(values)
    tokens, candidates = k.shape[1], k.shape[1] - window
    domain = {"all": tokens, "candidates": candidates}
    tau = math.sqrt(k.shape[2]) if temperature is None else temperature
    rows: dict[str, list[Array | float]] = {}
    for h in range(len(k)):
        count = domain[norm_domain]
        euclid = euclid_part(k[h], count, normalisation, domain[centroid])[:candidates]
        part, anchor = cosine_part(k[h], count, normalisation, reading=cosine, unit=unit_mean)
        part = part[:candidates]
        diversity = alpha * euclid + (1 - alpha) * part
        vt = rescale(minmax(norms(v[h, :candidates])), mean(a[h])) if value_norm else np.zeros(candidates)
        mixed = a[h] + vt
        target, size = {"attention": (a[h], mean), "importance": (mixed, mean), "max": (a[h], max)}[div_scale]
        if scale_parts:
            scaled = alpha * rescale(euclid, size(target), size) + (1 - alpha) * rescale(part, size(target), size)
        else:
            scaled = rescale(diversity, size(target), size)
        dist = distances(k[h : h + 1], domain[centroid])[0]
        r_cos = float(mean_cosine(k[h : h + 1])[0])
        averaged = domain[avg_domain]
        if redundancy_map == "minmax":
            r_euc, r_std = 1 - mean(euclid_part(k[h], candidates, leading=domain[centroid])), math.nan
        else:
            r_euc = bounded_redundancy(mean(dist[:averaged]), tau, redundancy_map)
            spread = (
                math.sqrt(math.fsum(d * d for d in dist[:averaged]) / (averaged - ddof))
                if std_of == "distances"
                else coordinate_spread(k[h, :averaged], std_of, ddof)
            )
            r_std = bounded_redundancy(spread, tau, redundancy_map)
        if std and math.isnan(r_std):
            raise ValueError("the standard deviation has no min-max map")
        unclamped = r_std if std else beta * r_euc + (1 - beta) * r_cos
        if clamp == "r_cos" and not std:
            weight = beta * r_euc + (1 - beta) * min(max(r_cos, 0.0), 1.0)
        else:
            weight = unclamped if clamp == "none" else min(max(unclamped, 0.0), 1.0)
        found: dict[str, Array | float] = {
            "centroid": array([mean(k[h, : domain[centroid], d]) for d in range(k.shape[2])]),
            "unit_mean": anchor,
            "dist": dist,
            "E": euclid,
            "C": part,
            "S": diversity,
            "St": scaled,
            "Vt": vt,
            "I": mixed,
            "r_cos": r_cos,
            "r_euc": r_euc,
            "r_std": r_std,
            "lambda": weight,
            "lambda_unclamped": unclamped,
        }
        for name, one in found.items():
            rows.setdefault(name, []).append(one)
    parts = {name: np.array(listed) for name, listed in rows.items()}
    if level == "layer":
        parts["lambda"] = np.full(len(k), mean(parts["lambda"]))
    share = parts["lambda"][:, None]
    return {**parts, "F": share * parts["St"] + (1 - share) * parts["I"]}
