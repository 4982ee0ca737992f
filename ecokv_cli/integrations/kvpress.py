"""ECOKV and MixKV as presses of kvpress: scored by the same functions as everywhere in ecokv.

Needs the extra ``kvpress``: ``pip install 'ecokv-cli[kvpress]'``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ecokv_cli.eviction.layer import Layer
from ecokv_cli.eviction.spec import parse_single
from ecokv_cli.geometry.similarity import working

try:
    from kvpress import ScorerPress
    from kvpress.utils import compute_n_kept, get_prerope_query_states
except ImportError as error:
    raise ImportError(
        f"ecokv_cli.integrations.kvpress: kvpress cannot be imported ({error}); pip install 'ecokv-cli[kvpress]'"
    ) from error

if TYPE_CHECKING:
    from ecokv_cli.eviction.method import Method

__all__ = ["EcoKVPress", "MixKVPress"]


@dataclass
class BoostedPress(ScorerPress):  # type: ignore[misc]
    """Base: scores of a boosted method of ecokv; the window always has the highest.

    Attributes
    ----------
    compression_ratio
        Share of the positions to remove, in [0, 1).
    window_size
        How many of the last positions score, and are kept.
    kernel_size
        Odd width of the pooling of attention; 1 turns it off.
    """

    compression_ratio: float = 0.0
    window_size: int = 32
    kernel_size: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        # An impossible setting is noticed here and not at the first prompt.
        _ = self.method

    @property
    def method(self) -> Method:
        """The method of ecokv that these settings stand for."""
        raise NotImplementedError

    def score(
        self,
        module: Any,
        hidden_states: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attentions: torch.Tensor | None,  # noqa: ARG002
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        """Scores that kvpress keeps the highest of.

        Parameters
        ----------
        module
            The attention layer.
        hidden_states
            ``[batch, N, hidden]`` that it was given.
        keys, values
            ``[batch, H, N, D]`` of its cache, keys after rotary embedding.
        attentions
            Not needed.
        kwargs
            What the layer was called with; its ``position_embeddings`` are used.

        Returns
        -------
        torch.Tensor
            ``[batch, H, N]`` fp32: the method's final scores of the candidates, and one more than the highest of them
            for the window. Equal scores are ordered by torch's topk, in ecokv by position.

        Raises
        ------
        MethodError
            If what kvpress will keep of the prompt cannot hold the window.
        NonFiniteError
            If keys, values or queries overflow.
        """
        method, n = self.method, keys.shape[2]
        method.require_budget(compute_n_kept(n, self.compression_ratio))
        queries = _window_queries(module, hidden_states, kwargs["position_embeddings"], method.obs_window)
        scores = torch.stack(
            [method.scores(_layer(module, *sample)).final for sample in zip(queries, keys, values, strict=True)]
        )
        return F.pad(scores, (0, n - scores.shape[-1]), value=float(scores.max()) + 1)


@dataclass
class EcoKVPress(BoostedPress):
    """ECOKV on SnapKV: attention, and cosine and Euclidean diversity weighted by a redundancy from both.

    Attributes
    ----------
    compression_ratio, kernel_size
        As in kvpress's SnapKVPress.
    window_size
        The same; 4 is ECOKV's own.
    alpha
        Weight of the Euclidean part of the diversity, in [0, 1].
    beta
        Weight of the Euclidean part of the redundancy, in [0, 1].

    Raises
    ------
    MethodError
        If a setting is out of range.

    Notes
    -----
    ``snapkv+ecokv`` of ecokv; `docs/methods.md` has the formulas.
    """

    window_size: int = 4
    alpha: float = 0.8
    beta: float = 0.6

    @property
    def method(self) -> Method:
        """The method of ecokv that these settings stand for."""
        return parse_single(
            f"snapkv+ecokv[window={self.window_size},kernel={self.kernel_size},alpha={self.alpha},beta={self.beta}]"
        )


@dataclass
class MixKVPress(BoostedPress):
    """MixKV on SnapKV: attention and value norms, and cosine diversity weighted by the mean pairwise cosine.

    Attributes
    ----------
    compression_ratio, window_size, kernel_size
        As in kvpress's SnapKVPress.

    Raises
    ------
    MethodError
        If a setting is out of range.

    Notes
    -----
    ``snapkv+mixkv`` of ecokv; `docs/methods.md` has the formulas.
    """

    @property
    def method(self) -> Method:
        """The method of ecokv that these settings stand for."""
        return parse_single(f"snapkv+mixkv[window={self.window_size},kernel={self.kernel_size}]")


def _window_queries(
    module: Any, hidden_states: torch.Tensor, embeddings: tuple[torch.Tensor, torch.Tensor], window: int
) -> torch.Tensor:
    """Queries of the last positions after rotary embedding, ``[batch, H_q, W, D]``."""
    queries = get_prerope_query_states(module, hidden_states[:, -window:])
    cos, sin = (part[:, -window:] for part in embeddings)
    # The model's own function: some embed a part of the dimensions only.
    embed = sys.modules[type(module).__module__].apply_rotary_pos_emb
    rotated: torch.Tensor = embed(queries, queries, cos, sin)[0]
    return rotated


def _layer(module: Any, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Layer:
    keys, values, queries = working(keys), working(values), working(queries)
    return Layer(
        index=module.layer_idx, layers=module.config.num_hidden_layers, keys=keys, values=values,
        window_queries=queries, scaling=module.scaling, decode_queries=queries[:, :0], decode_keys=keys[:, :0],
        decode_values=values[:, :0],
    ).require_finite()  # fmt: skip
