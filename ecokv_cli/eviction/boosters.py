"""Boosters: how diversity enters the final score of a host that scores by attention. No torch at import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ecokv_cli.errors import MethodError

if TYPE_CHECKING:
    import torch

    from ecokv_cli.eviction.diversity import Boosted
    from ecokv_cli.eviction.layer import Layer


@dataclass(frozen=True)
class Booster:
    """Base of all boosters: options are the fields of a subclass, facts about the method its class variables.

    Attributes
    ----------
    default_window
        Window that the booster brings along; 0 keeps the host's own.
    formula, needs, source, deviations
        As for hosts.
    """

    default_window: ClassVar[int] = 0
    formula: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("keys",)
    source: ClassVar[str]
    deviations: ClassVar[str] = "none known"

    def mix(self, attention: torch.Tensor, layer: Layer) -> Boosted:
        """Combine host scores ``[H, M]`` with the layer's diversity."""
        raise NotImplementedError


@dataclass(frozen=True)
class MixKV(Booster):
    """MixKV: importance and cosine diversity, weighted by the head's mean pairwise cosine."""

    formula: ClassVar[str] = (
        "F = r D' + (1 - r) (A + V'), D = minmax(-<u_j, mean u>) and V = minmax(||v_j||), both scaled to the mean "
        "of A; r = mean pairwise cosine of the head, clamped to 0..1"
    )
    needs: ClassVar[tuple[str, ...]] = ("keys", "values")
    source: ClassVar[str] = "MixKV, arXiv 2510.20707"
    deviations: ClassVar[str] = (
        "r is that of this prompt, the paper's best variant; the released code reads a table made for one model. A "
        "constant row becomes zeros instead of 0/0"
    )

    def mix(self, attention: torch.Tensor, layer: Layer) -> Boosted:
        """Combine host scores ``[H, M]`` with the layer's diversity."""
        from ecokv_cli.eviction.diversity import combine, cosine_diversity, with_value_norm

        diversity = cosine_diversity(layer, attention.shape[1])
        return combine(with_value_norm(attention, layer), diversity, self.weight(layer), attention)

    def weight(self, layer: Layer) -> torch.Tensor:
        """Lambda per head, ``[H]`` fp64: the clamped mean pairwise cosine."""
        return layer.directions.mean_cosine.clamp(0, 1)


@dataclass(frozen=True)
class EcoKV(Booster):
    """ECOKV: cosine and Euclidean diversity, weighted by a redundancy from both.

    Attributes
    ----------
    alpha
        Weight of the Euclidean part of the diversity, in [0, 1].
    beta
        Weight of r_euc in lambda, in [0, 1]; ``alpha = beta = 0`` is MixKV with online redundancy.
    normalisation
        How both diversity parts are brought to [0, 1]: ``minmax``, ``clipped`` or ``robust``; see `normalised`.
    redundancy_map
        Map of the mean distance to r_euc, and of the root mean square to r_std; see `euclidean_redundancy`.
    avg_domain
        Keys over which r_euc averages its distances: ``all`` N or the ``candidates`` only. The centroid and r_cos
        are over all N either way; the ``minmax`` map is always over the candidates.
    div_scale
        What the diversity is scaled to: the mean of the ``attention`` score or of the whole ``importance``.
    value_norm
        Whether importance includes the value norm.
    std
        Use ``r_std`` alone as lambda instead of the mix.
    temperature
        ``tau`` of the redundancy maps; 0 stands for ``sqrt(D)``.
    """

    alpha: float = 0.8
    beta: float = 0.6
    normalisation: Literal["minmax", "clipped", "robust"] = "minmax"
    redundancy_map: Literal["sigmoid", "sigmoid2", "exp", "inverse", "minmax"] = "sigmoid"
    avg_domain: Literal["all", "candidates"] = "all"
    div_scale: Literal["attention", "importance"] = "attention"
    value_norm: bool = True
    std: bool = False
    temperature: float = 0.0

    default_window: ClassVar[int] = 4
    formula: ClassVar[str] = (
        "F = lambda S' + (1 - lambda) (A + V'), S = alpha E + (1 - alpha) C, E = minmax(||k_j - c||), "
        "C = minmax(-<u_j, mean u>), S' and V' scaled to the mean of A; lambda = beta r_euc + (1 - beta) r_cos, "
        "r_euc = 1 - sigmoid(mean ||k_i - c|| / sqrt(D))"
    )
    needs: ClassVar[tuple[str, ...]] = ("keys", "values")
    source: ClassVar[str] = "ECOKV, arXiv 2609.06663"
    deviations: ClassVar[str] = (
        "no formulas are public beyond the paper's summaries: every open point is an option whose default is the "
        "reading that agrees best with them. A constant row becomes zeros, so that F falls back to (1 - lambda) I"
    )

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise MethodError(f"ecokv: {name}={getattr(self, name)} is outside 0..1")
        if self.temperature < 0:
            raise MethodError(f"ecokv: temperature={self.temperature} is negative; 0 stands for sqrt(head dimension)")
        if self.std and self.redundancy_map == "minmax":
            raise MethodError("ecokv: std=true has no redundancy_map=minmax; write sigmoid, sigmoid2, exp or inverse")

    def mix(self, attention: torch.Tensor, layer: Layer) -> Boosted:
        """Combine host scores ``[H, M]`` with the layer's diversity."""
        from ecokv_cli.eviction.diversity import combine, cosine_diversity, euclidean_diversity, with_value_norm

        candidates = attention.shape[1]
        euclidean = euclidean_diversity(layer, candidates, self.normalisation)
        cosine = cosine_diversity(layer, candidates, self.normalisation)
        diversity = self.alpha * euclidean + (1 - self.alpha) * cosine
        importance = with_value_norm(attention, layer) if self.value_norm else attention
        target = attention if self.div_scale == "attention" else importance
        return combine(importance, diversity, self.weight(layer, candidates), target)

    def weight(self, layer: Layer, candidates: int) -> torch.Tensor:
        """Lambda per head, ``[H]`` fp64."""
        from ecokv_cli.geometry.redundancy import mix_redundancy, std_redundancy

        if self.std:
            distances = self._averaged(layer, candidates)
            return std_redundancy(distances, layer.keys.shape[-1], self.redundancy_map, self.temperature or None)
        return mix_redundancy(self.r_euc(layer, candidates), layer.directions.mean_cosine, self.beta)

    def r_euc(self, layer: Layer, candidates: int) -> torch.Tensor:
        """Euclidean redundancy per head, ``[H]`` fp64, by this booster's map."""
        from ecokv_cli.geometry.redundancy import euclidean_redundancy

        # The scale-free map averages E itself, which exists for candidates only.
        distances = (
            layer.key_distances[:, :candidates]
            if self.redundancy_map == "minmax"
            else self._averaged(layer, candidates)
        )
        return euclidean_redundancy(distances, layer.keys.shape[-1], self.redundancy_map, self.temperature or None)

    def _averaged(self, layer: Layer, candidates: int) -> torch.Tensor:
        return layer.key_distances[:, : None if self.avg_domain == "all" else candidates]


@dataclass(frozen=True)
class DiversityOnly(Booster):
    """Base of pure diversity: lambda = 1, so the host gives windows and budgets only."""

    def mix(self, attention: torch.Tensor, layer: Layer) -> Boosted:
        """Diversity alone, scaled to the mean of the host's scores."""
        from ecokv_cli.eviction.diversity import combine

        diversity = self.diversity(layer, attention.shape[1])
        return combine(attention, diversity, attention.new_ones(len(attention)), attention)

    def diversity(self, layer: Layer, candidates: int) -> torch.Tensor:
        """Diversity ``[H, M]`` in [0, 1]."""
        raise NotImplementedError


@dataclass(frozen=True)
class CosineOnly(DiversityOnly):
    """Pure cosine diversity: the host's window and budgets, filled by KeyDiff's order."""

    formula: ClassVar[str] = "F = D', D = minmax(-<u_j, mean u>) scaled to the mean of A"
    source: ClassVar[str] = "the keydiff option of MixKV, arXiv 2510.20707"

    def diversity(self, layer: Layer, candidates: int) -> torch.Tensor:
        """See `cosine_diversity`."""
        from ecokv_cli.eviction.diversity import cosine_diversity

        return cosine_diversity(layer, candidates)


@dataclass(frozen=True)
class EuclidOnly(DiversityOnly):
    """Pure Euclidean diversity: the host's window and budgets, filled by ManifoldKV's order."""

    formula: ClassVar[str] = "F = E', E = minmax(||k_j - c||) scaled to the mean of A"
    source: ClassVar[str] = "ECOKV's Euclidean part, arXiv 2609.06663, alone; the order of ManifoldKV"

    def diversity(self, layer: Layer, candidates: int) -> torch.Tensor:
        """See `euclidean_diversity`."""
        from ecokv_cli.eviction.diversity import euclidean_diversity

        return euclidean_diversity(layer, candidates)


BOOSTERS: dict[str, type[Booster]] = {
    "mixkv": MixKV,
    "ecokv": EcoKV,
    "keydiff": CosineOnly,
    "manifold": EuclidOnly,
}
"""Every booster by name, in the order of tables."""
