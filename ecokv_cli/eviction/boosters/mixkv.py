"""MixKV: importance and cosine diversity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ecokv_cli.eviction.boosters.base import Booster

if TYPE_CHECKING:
    import torch

    from ecokv_cli.eviction.diversity import Boosted
    from ecokv_cli.eviction.layer import Layer


@dataclass(frozen=True)
class MixKV(Booster):
    """MixKV: importance and cosine diversity, weighted by the head's mean pairwise cosine.

    Attributes
    ----------
    redundancy
        The weight r: ``online``, the mean pairwise cosine of this head and prompt; ``fixed``, 1/2 for every head,
        which orders as the equal thirds of the released code's fixed mode do; ``none``, 0, importance alone.
    intrinsic
        What is added to attention: ``values``, the value norm, large = keep; ``keys``, the key norm, small = keep;
        ``none``.
    """

    redundancy: Literal["online", "fixed", "none"] = "online"
    intrinsic: Literal["values", "keys", "none"] = "values"

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
        from ecokv_cli.eviction.diversity import Boosted, cosine_diversity, rescale, with_norm

        diversity = cosine_diversity(layer, attention.shape[1])
        importance = with_norm(attention, layer, self.intrinsic)
        return Boosted(importance, diversity, rescale(diversity, attention), self.weight(layer))

    def weight(self, layer: Layer) -> torch.Tensor:
        """Lambda per head, ``[H]`` fp64: the clamped mean pairwise cosine, or a constant."""
        r_cos = layer.directions.mean_cosine.clamp(0, 1)
        return r_cos if self.redundancy == "online" else r_cos.new_full(r_cos.shape, _FIXED[self.redundancy])


_FIXED = {"fixed": 0.5, "none": 0.0}
