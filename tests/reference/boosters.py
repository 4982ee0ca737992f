"""Boosters: diversity on top of a host's importance A [H, M], with MixKV's mix or with diversity alone."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from reference.basics import Array, array, mean, norms
from reference.geometry import distances, mean_cosine, unit_keys
from reference.normalisation import minmax, normalise, rescale


def cosine_part(
    head_keys: Array, count: int, normalisation: str = "minmax", *, reading: str = "normalised", unit: bool = True
) -> tuple[Array, Array]:
    """Normalised -<u_j, ubar> of one head's first `count` keys, and ubar [D], the mean unit key over all N positions.

    Other readings are not normalised: "negative" -cos, "half" (1 - cos) / 2, "distance" 1 - cos, with cos = cos(u_j,
    ubar), or <u_j, ubar> without `unit`.
    """
    units = unit_keys(head_keys)
    anchor = np.array([mean(units[:, d]) for d in range(units.shape[1])])
    length = float(norms(anchor)) if unit else 1.0
    cosines = [float(units[j] @ anchor) / length if length > 0 else 0.0 for j in range(count)]
    if reading != "normalised":
        return array([{"negative": -c, "half": (1 - c) / 2, "distance": 1 - c}[reading] for c in cosines]), anchor
    # Products of unit vectors carry rounding noise of size 1 ulp of 1 even where they cancel.
    return normalise([-c for c in cosines], normalisation, scale=1.0), anchor


def euclid_part(head_keys: Array, count: int, normalisation: str = "minmax", leading: int | None = None) -> Array:
    """Normalised distances ||k_j - c|| of one head's first `count` keys; c the mean over all N, or the `leading`."""
    found = distances([head_keys], leading)[0, :count]
    return normalise(found, normalisation, scale=float(max(norms(head_keys))))


def mixkv_score(
    importance: ArrayLike, keys: ArrayLike, values: ArrayLike, window: int, *, redundancy: str = "online",
    intrinsic: str = "values",
) -> dict[str, Array]:  # fmt: skip
    """MixKV with online redundancy, per head: F = r Dt + (1 - r)(A + Vt), all [H, M].

    C = minmax(-<u_j, ubar>) on the candidates with ubar over all N keys, Dt = C rescaled to mean(A), Vt =
    minmax(||v_j||) rescaled to mean(A), r = mean off-diagonal cosine over all N keys, not clamped.
    Constant rows follow the explicit rule of `minmax`, there is no epsilon. `redundancy="fixed"`: F is the mean of A,
    Dt and Vt times 3/2, "none": A + Vt. `intrinsic="keys"`: Vt from -||k_j||, "none": no Vt.
    """
    a, k, v = array(importance), array(keys), array(values)
    candidates = k.shape[1] - window
    parts: dict[str, list[Array | float]] = {name: [] for name in ("C", "Vt", "I", "r_cos", "F")}
    for h in range(len(k)):
        target = mean(a[h])
        cosine, _ = cosine_part(k[h], candidates)
        lengths = {"values": norms(v[h]), "keys": -norms(k[h]), "none": np.zeros(len(k[h]))}[intrinsic][:candidates]
        vt = rescale(minmax(lengths), target)
        r = float(mean_cosine(k[h : h + 1])[0])
        dt = rescale(cosine, target)
        final = {
            "online": r * dt + (1 - r) * (a[h] + vt),
            "fixed": 1.5 * (a[h] + dt + vt) / 3,
            "none": a[h] + vt,
        }[redundancy]
        for name, part in zip(parts, (cosine, vt, a[h] + vt, r, final), strict=True):
            parts[name].append(part)
    return {name: np.array(rows) for name, rows in parts.items()}


def keydiff_booster(importance: ArrayLike, keys: ArrayLike, window: int) -> Array:
    """Cosine diversity alone [H, M]: minmax(-<u_j, ubar>) on the candidates, rescaled to the head's mean(A).

    ubar is the mean unit key over all N positions; of the importance A only its mean counts.
    """
    return _alone(importance, keys, window, lambda head, count: cosine_part(head, count)[0])


def manifold_booster(importance: ArrayLike, keys: ArrayLike, window: int) -> Array:
    """Distance diversity alone [H, M]: minmax(||k_j - c||) on the candidates, rescaled to the head's mean(A).

    c is the mean key over all N positions; of the importance A only its mean counts.
    """
    return _alone(importance, keys, window, euclid_part)


def _alone(importance: ArrayLike, keys: ArrayLike, window: int, part: Callable[[Array, int], Array]) -> Array:
    pairs = zip(array(importance), array(keys), strict=True)
    return np.array([rescale(part(head, len(head) - window), mean(a)) for a, head in pairs])
