"""ECOKV, with every reading of what is not public about it as an option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.boosters.base import Booster

if TYPE_CHECKING:
    import torch

    from ecokv_cli.eviction.diversity import Boosted
    from ecokv_cli.eviction.layer import Layer


@dataclass(frozen=True)
class EcoKV(Booster):
    """ECOKV: cosine and Euclidean diversity, weighted by a redundancy from both.

    Attributes
    ----------
    alpha
        Weight of the Euclidean part of the diversity, in [0, 1]; the cosine part has the rest.
    beta
        Weight of r_euc in lambda, in [0, 1]; r_cos has the rest. ``alpha = beta = 0`` is MixKV with online redundancy.
    normalisation
        How both diversity parts are made comparable: ``minmax``, ``clipped``, ``robust``, ``zscore``, ``rank`` or
        ``softmax``; see `normalised`.
    redundancy_map
        Map of the mean distance to r_euc, and of the spread to r_std; see `euclidean_redundancy`.
    avg_domain
        Keys over which r_euc averages its distances, and r_std its squares: ``all`` N or the ``candidates`` only.
        r_cos is over all N either way; the ``minmax`` map is always over the candidates.
    div_scale
        What the diversity is scaled to: the mean of the ``attention`` score (its sum comes to the same), the mean of
        the whole ``importance``, or the ``max`` of the attention score.
    value_norm
        Whether importance includes the value norm.
    std
        Use r_std alone as lambda instead of the mix.
    temperature
        ``tau`` of the redundancy maps; 0 stands for ``sqrt(D)``.
    std_of
        The spread that r_std maps: root mean square ``distances`` to the centroid, standard deviation of all
        ``coordinates`` taken together, or mean over the ``dimensions`` of their standard deviations.
    ddof
        Subtracted from the counts that r_std divides by: 0 or 1.
    centroid
        Keys whose mean the distances are to: ``all`` N or the ``candidates`` only.
    norm_domain
        Keys over which the parts are normalised: the ``candidates`` or ``all`` N.
    cosine
        The cosine part, from c = cos(k_j, mean u): ``normalised``, as `normalisation` says, or as it is: ``negative``
        -c, ``half`` (1 - c) / 2, ``distance`` 1 - c.
    unit_mean
        Whether c is the cosine to the mean unit key; false: the product with it, which is shorter than 1. Min-max
        does not see the difference.
    scale_parts
        Scale each part before alpha mixes them, instead of the mix.
    clamp
        What is limited to [0, 1]: ``r_cos`` and lambda, only ``lambda``, or ``none``.
    level
        Whether lambda is that of each KV ``head``, or its mean over the heads of the ``layer``.
    rope
        Keys whose geometry is taken: as cached, ``post``, or ``pre``, before rotary embedding.
    allocate
        What adakv's heads share the budget by: the ``host`` score or the ``boosted`` one.
    """

    alpha: float = 0.8
    beta: float = 0.6
    normalisation: Literal["minmax", "clipped", "robust", "zscore", "rank", "softmax"] = "minmax"
    redundancy_map: Literal["sigmoid", "sigmoid2", "exp", "inverse", "minmax", "centred"] = "sigmoid"
    avg_domain: Literal["all", "candidates"] = "all"
    div_scale: Literal["attention", "importance", "max"] = "attention"
    value_norm: bool = True
    std: bool = False
    temperature: float = 0.0
    std_of: Literal["distances", "coordinates", "dimensions"] = "distances"
    ddof: int = 0
    centroid: Literal["all", "candidates"] = "all"
    norm_domain: Literal["candidates", "all"] = "candidates"
    cosine: Literal["normalised", "negative", "half", "distance"] = "normalised"
    unit_mean: bool = True
    scale_parts: bool = False
    clamp: Literal["r_cos", "lambda", "none"] = "r_cos"
    level: Literal["head", "layer"] = "head"
    rope: Literal["post", "pre"] = "post"
    allocate: Literal["host", "boosted"] = "host"

    default_window: ClassVar[int] = 4
    formula: ClassVar[str] = (
        "F = lambda S' + (1 - lambda) (A + V'), S = alpha E + (1 - alpha) C, E = minmax(||k_j - c||), "
        "C = minmax(-<u_j, mean u>), S' and V' scaled to the mean of A; lambda = beta r_euc + (1 - beta) r_cos, "
        "r_euc = 1 - sigmoid(mean ||k_i - c|| / sqrt(D))"
    )
    source: ClassVar[str] = "ECOKV, arXiv 2609.06663"
    deviations: ClassVar[str] = (
        "no formulas are public beyond the paper's summaries: every open point is an option whose default is the "
        "reading that agrees best with them. Selection is per KV head: with one per query head a key would be stored "
        "up to as many times as its group has heads. A constant row becomes zeros, so that F falls back to "
        "(1 - lambda) I; MixKV's code adds 1e-8 to divisors instead, which comes to the same"
    )

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise MethodError(f"ecokv: {name}={getattr(self, name)} is outside 0..1")
        if self.temperature < 0:
            raise MethodError(f"ecokv: temperature={self.temperature} is negative; 0 stands for sqrt(head dimension)")
        if self.ddof not in (0, 1):
            raise MethodError(f"ecokv: ddof={self.ddof} is neither 0 nor 1")
        if self.std and self.redundancy_map == "minmax":
            raise MethodError(
                "ecokv: std=true has no redundancy_map=minmax; write sigmoid, sigmoid2, exp, inverse or centred"
            )

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # here an option decides
        """Keys and values, and the keys before rotary embedding where their geometry is asked for."""
        return ("keys", "values") if self.rope == "post" else ("keys", "values", "prerope_keys")

    @property
    def allocates(self) -> bool:
        """Whether heads share the budget by the boosted score."""
        return self.allocate == "boosted"

    def mix(self, attention: torch.Tensor, layer: Layer) -> Boosted:
        """Combine host scores ``[H, M]`` with the layer's diversity."""
        from ecokv_cli.eviction.diversity import Boosted, cosine_diversity, normalised, rescale, with_norm

        candidates = attention.shape[1]
        count = candidates if self.norm_domain == "candidates" else layer.tokens
        distances = self._distances(layer, candidates)[:, :count]
        euclidean = normalised(distances, self.normalisation)[:, :candidates]
        cosine = cosine_diversity(self._geometry(layer), count, self.cosine, self.normalisation, unit=self.unit_mean)
        cosine = cosine[:, :candidates]
        importance = with_norm(attention, layer, "values" if self.value_norm else "none")
        target = importance if self.div_scale == "importance" else attention
        by = "max" if self.div_scale == "max" else "mean"
        diversity = self.alpha * euclidean + (1 - self.alpha) * cosine
        if self.scale_parts:
            parts = rescale(euclidean, target, by), rescale(cosine, target, by)
            scaled = self.alpha * parts[0] + (1 - self.alpha) * parts[1]
        else:
            scaled = rescale(diversity, target, by)
        return Boosted(importance, diversity, scaled, self.weight(layer, candidates))

    def weight(self, layer: Layer, candidates: int) -> torch.Tensor:
        """Lambda per head, ``[H]`` fp64."""
        from ecokv_cli.geometry.redundancy import mix_redundancy

        if self.std:
            found = self._r_std(layer, candidates)
        else:
            r_cos = self._geometry(layer).directions.mean_cosine
            found = mix_redundancy(self.r_euc(layer, candidates), r_cos, self.beta, self.clamp)
        return found if self.level == "head" else found.mean().expand(len(found))

    def r_euc(self, layer: Layer, candidates: int) -> torch.Tensor:
        """Euclidean redundancy per head, ``[H]`` fp64, by this booster's map."""
        from ecokv_cli.geometry.redundancy import euclidean_redundancy

        # The scale-free map averages E itself, which exists for candidates only.
        over_all = self.avg_domain == "all" and self.redundancy_map != "minmax"
        distances = self._distances(layer, candidates)[:, : layer.tokens if over_all else candidates]
        return euclidean_redundancy(distances, layer.keys.shape[-1], self.redundancy_map, self.temperature or None)

    def _r_std(self, layer: Layer, candidates: int) -> torch.Tensor:
        from ecokv_cli.geometry.redundancy import map_redundancy, root_mean_square
        from ecokv_cli.geometry.spread import coordinate_spread

        count = layer.tokens if self.avg_domain == "all" else candidates
        spread = (
            root_mean_square(self._distances(layer, candidates)[:, :count], self.ddof)
            if self.std_of == "distances"
            else coordinate_spread(self._geometry(layer).keys[:, :count], self.std_of, self.ddof)
        )
        return map_redundancy(spread, layer.keys.shape[-1], self.redundancy_map, self.temperature or None)

    def _distances(self, layer: Layer, candidates: int) -> torch.Tensor:
        """Distances of all N keys to the centroid."""
        from ecokv_cli.geometry.spread import centroid_distances

        geometry = self._geometry(layer)
        return geometry.key_distances if self.centroid == "all" else centroid_distances(geometry.keys, candidates)

    def _geometry(self, layer: Layer) -> Layer:
        """The layer with the keys whose geometry is taken."""
        return layer if self.rope == "post" else layer.unrotated
