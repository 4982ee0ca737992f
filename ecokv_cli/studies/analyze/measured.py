"""One layer of one sample with everything that several tables need, each computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ecokv_cli.eviction.directions import Directions
from ecokv_cli.geometry.cloud import Cloud, survey
from ecokv_cli.geometry.cosines import CosineHistogram, cosine_histogram
from ecokv_cli.geometry.sinks import Sinks, find_sinks

if TYPE_CHECKING:
    from ecokv_cli.eviction.diversity import Boosted
    from ecokv_cli.eviction.layer import Layer
    from ecokv_cli.studies.analyze.prompt import Prompt
    from ecokv_cli.studies.analyze.settings import AnalyzeSettings


@dataclass(frozen=True)
class Measured:
    """One layer, its prompt, and what is measured on it."""

    layer: Layer
    prompt: Prompt
    settings: AnalyzeSettings

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The analysed tensors by the name they have in the `tensor` column."""
        named = {"keys": self.layer.keys, "values": self.layer.values, "prerope_keys": self.layer.prerope_keys}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @cached_property
    def clouds(self) -> dict[str, Cloud]:
        """Survey of each tensor."""
        return {name: survey(tensor) for name, tensor in self.tensors.items()}

    @cached_property
    def histograms(self) -> dict[str, CosineHistogram]:
        """Pairwise cosines of each tensor; the only analysis whose time grows with N^2, up to a limit."""
        pairs, seed = self.settings.pairs, self.settings.seed
        return {name: cosine_histogram(tensor, pairs, seed) for name, tensor in self.tensors.items()}

    @cached_property
    def informed(self) -> Layer:
        """The layer for eviction rules, which find there what the survey knows and do not compute it again."""
        layer, cloud, dtype = replace(self.layer), self.clouds["keys"], self.layer.keys.dtype
        resultant = cloud.direction.norm(dim=1)
        cosines = torch.where(resultant[:, None] > 0, cloud.alignment / resultant[:, None], 0.0)
        # Cached properties keep their values in the dictionary of the object.
        vars(layer)["key_distances"] = cloud.distances.to(dtype)
        vars(layer)["directions"] = Directions(cosines=cosines.to(dtype), zero=cloud.zero)
        return layer

    @cached_property
    def boosted(self) -> Boosted:
        """Importance and diversity of the candidates, and lambda."""
        return self.settings.method.boost(self.informed)

    @cached_property
    def attention(self) -> torch.Tensor:
        """Mean attention from the method's observation window, ``[H, N - W]``: window positions left out."""
        window = min(self.settings.method.obs_window, self.layer.window_queries.shape[1])
        return self.informed.attention(window)[:, : self.layer.tokens - window]

    @cached_property
    def sinks(self) -> Sinks:
        """Sink positions, by window attention and key norm."""
        return find_sinks(self.attention, self.clouds["keys"].lengths)
