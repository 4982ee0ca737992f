r"""How redundant the keys of a head are, as one number: the diversity weight lambda.

MixKV takes the mean pairwise cosine, ECOKV mixes it with a map of the mean distance to the centroid. The map is
not settled by what is public about the paper; the readings in `REDUNDANCY_MAPS` are all offered.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

RedundancyMap = Literal["sigmoid", "sigmoid2", "exp", "inverse", "minmax", "centred"]
Clamp = Literal["r_cos", "lambda", "none"]
REDUNDANCY_MAPS: tuple[RedundancyMap, ...] = get_args(RedundancyMap)

_SCALED_MAPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": lambda x: torch.sigmoid(-x),
    "sigmoid2": lambda x: 2 * torch.sigmoid(-x),
    "exp": lambda x: torch.exp(-x),
    "inverse": lambda x: 1 / (1 + x),
    "centred": lambda x: torch.sigmoid(1 - x),
}


def euclidean_redundancy(
    distances: torch.Tensor, dim: int, kind: RedundancyMap = "sigmoid", temperature: float | None = None
) -> torch.Tensor:
    r"""``r_euc``: a falling map of the mean distance to the centroid ``dbar`` with ``x = dbar / tau``.

    =========  ==========================  ==========  ==================================================
    kind       formula                     range       note
    =========  ==========================  ==========  ==================================================
    sigmoid    ``1 - sigmoid(x)``          (0, 1/2]    default; the literal reading
    sigmoid2   ``2 (1 - sigmoid(x))``      (0, 1]      the same, reaching 1
    exp        ``exp(-x)``                 (0, 1]
    inverse    ``1 / (1 + x)``             (0, 1]
    minmax     ``1 - mean(minmax(d_i))``   [0, 1]      scale-free: blind to how tight the cluster is
    centred    ``1 - sigmoid(x - 1)``      (0, 0.731]  1/2 where the mean distance is tau
    =========  ==========================  ==========  ==================================================

    Parameters
    ----------
    distances
        ``[H, N]`` distances to the centroid over the averaging domain.
    dim
        Head dimension D; the default temperature is ``sqrt(D)``.
    kind
        One of `REDUNDANCY_MAPS`.
    temperature
        ``tau``; not used by ``minmax``.

    Returns
    -------
    torch.Tensor
        ``[H]`` fp64; larger = tighter cluster = more redundant. All but ``minmax`` see the absolute scale of the
        keys, which differs between layers.
    """
    if kind == "minmax":
        return 1 - minmax(distances.double()).mean(dim=-1)
    return map_redundancy(distances.mean(dim=-1, dtype=torch.float64), dim, kind, temperature)


def map_redundancy(
    spread: torch.Tensor, dim: int, kind: RedundancyMap = "sigmoid", temperature: float | None = None
) -> torch.Tensor:
    """A spread of the keys, mapped to how redundant they are: the table of `euclidean_redundancy`, with its x.

    Of a mean distance this is ``r_euc``; of a dispersion such as `root_mean_square` it is ``r_std``, which is used
    alone as lambda and not mixed with r_cos.

    Parameters
    ----------
    spread
        ``[H]`` fp64 >= 0, in the units of the keys.
    dim
        Head dimension D.
    kind
        All of `REDUNDANCY_MAPS` but ``minmax``, which has no single number to map.
    temperature
        ``tau``; ``sqrt(D)`` by default.

    Returns
    -------
    torch.Tensor
        ``[H]`` fp64; larger spread = lower redundancy.
    """
    return _SCALED_MAPS[kind](spread / (temperature or math.sqrt(dim)))


def root_mean_square(distances: torch.Tensor, ddof: int = 0) -> torch.Tensor:
    """``sqrt(sum d_i^2 / (n - ddof))`` of each row ``[H, n]``, ``[H]`` fp64: the square root of the total variance."""
    squares = distances.double().square().sum(dim=-1)
    return (squares / max(distances.shape[-1] - ddof, 1)).sqrt()


def mix_redundancy(r_euc: torch.Tensor, r_cos: torch.Tensor, beta: float, clamp: Clamp = "r_cos") -> torch.Tensor:
    """ECOKV's ``lambda = beta r_euc + (1 - beta) r_cos``, by default with r_cos and the result clamped to [0, 1].

    Parameters
    ----------
    r_euc, r_cos
        ``[H]`` each.
    beta
        Weight of the Euclidean part, in [0, 1]; 0 gives MixKV's weight.
    clamp
        ``r_cos``: that and the result. ``lambda``: the result only, so that a negative r_cos counts against r_euc.
        ``none``: lambda may be negative, which rewards what is close to the rest.

    Returns
    -------
    torch.Tensor
        ``[H]``; the weight of diversity against importance.
    """
    if clamp == "r_cos":
        r_cos = r_cos.clamp(0, 1)
    mixed = beta * r_euc + (1 - beta) * r_cos
    return mixed if clamp == "none" else mixed.clamp(0, 1)


def minmax(values: torch.Tensor) -> torch.Tensor:
    """Rows scaled to [0, 1], ``(x - min) / (max - min)``; a row that is constant to rounding becomes all zeros.

    Parameters
    ----------
    values
        ``[H, M]``, M >= 0.

    Returns
    -------
    torch.Tensor
        ``[H, M]``. Zeros rather than 0/0 for a constant row: it says nothing about which entry to prefer.
    """
    if values.shape[-1] == 0:
        return values
    low, high = values.amin(dim=-1, keepdim=True), values.amax(dim=-1, keepdim=True)
    span = high - low
    rounding = 4 * torch.finfo(values.dtype).eps * torch.maximum(low.abs(), high.abs())
    constant = span <= rounding
    return torch.where(constant, torch.zeros_like(values), (values - low) / torch.where(constant, 1.0, span))
