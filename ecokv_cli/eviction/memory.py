"""A state that remembers what was evicted: linear attention over the evicted pairs, decayed by their entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ecokv_cli.geometry.redundancy import minmax

_BLOCK = 1024


@dataclass(frozen=True)
class Memory:
    """What is left of the evicted keys and values of each head.

    Attributes
    ----------
    state
        ``[H, D, Dv]``.
    normaliser
        ``[H, D]``.
    share
        ``[H]`` in [0, 1]: the window's mean attention on what was evicted, the estimate of how much attention is
        missing; 0 = nothing evicted, and the answer is exact attention.
    """

    state: torch.Tensor
    normaliser: torch.Tensor
    share: torch.Tensor

    def blend(self, queries: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """``(1 - g) exact + g phi(q) S / <phi(q), z>`` with g the share and ``phi = elu + 1``.

        Parameters
        ----------
        queries
            ``[H, R, D]``.
        exact
            ``[H, R, Dv]`` fp64: attention output over what is kept.

        Returns
        -------
        torch.Tensor
            ``[H, R, Dv]``; `exact` where the normaliser vanishes.
        """
        features = (F.elu(queries) + 1).double()
        weight = features @ self.normaliser[..., None]
        read = features @ self.state / torch.where(weight > 0, weight, 1.0)
        share = torch.where(weight > 0, self.share[:, None, None], 0.0)
        return (1 - share) * exact + share * read


def received_entropy(rows: torch.Tensor) -> torch.Tensor:
    """Entropy of the attention that a position receives, over the window rows, in [0, 1].

    ``H_j = -sum_t p_t log p_t / log W`` with p the column of attention divided by its sum; 1 = all rows look at it
    alike, 0 = only one does (or none, or W = 1).

    Parameters
    ----------
    rows
        ``[H, W, M]`` window attention.

    Returns
    -------
    torch.Tensor
        ``[H, M]``.
    """
    window = rows.shape[1]
    if window == 1:
        return torch.zeros_like(rows[:, 0])
    entropy = torch.stack([_entropy(head) for head in rows]) / math.log(window)
    return entropy.clamp_(0, 1)


def _entropy(rows: torch.Tensor) -> torch.Tensor:
    total = rows.sum(dim=0)
    share = rows / torch.where(total > 0, total, 1.0)
    entropy: torch.Tensor = torch.special.entr(share).sum(dim=0)
    return entropy


def given_entropy(rows: torch.Tensor) -> torch.Tensor:
    """Entropy of the attention that the rows give, averaged over the rows by how much each looks at a position.

    ``H_j = sum_t p_t e_t`` with p the column of attention divided by its sum and
    ``e_t = -sum_i r_i log r_i / log M`` of the row's attention on the candidates, divided by its sum. 1 = what looks
    at it looks at everything, 0 = nothing else (or nothing looks at it, or M = 1).

    Parameters
    ----------
    rows
        ``[H, W, M]`` window attention.

    Returns
    -------
    torch.Tensor
        ``[H, M]`` in [0, 1].
    """
    if rows.shape[-1] == 1:
        return torch.zeros_like(rows[:, 0])
    # Of transposed rows, the sums run over the candidates.
    spread = torch.stack([_entropy(head.T) for head in rows]) / math.log(rows.shape[-1])
    total = rows.sum(dim=1)
    return ((spread[:, None] @ rows)[:, 0] / torch.where(total > 0, total, 1.0)).clamp_(0, 1)


def retention(rows: torch.Tensor, entropy: torch.Tensor, mix: float) -> torch.Tensor:
    """``R = mix minmax(mean attention) + (1 - mix) minmax(entropy)``, ``[H, M]`` in [0, 1]; high = keep."""
    return mix * minmax(rows.mean(dim=1)) + (1 - mix) * minmax(entropy)


def remember(
    keys: torch.Tensor,
    values: torch.Tensor,
    attention: torch.Tensor,
    entropy: torch.Tensor,
    evicted: torch.Tensor,
    order: torch.Tensor | None = None,
) -> Memory:
    """Fold the evicted pairs of each head into its state, one after the other.

    ``S <- h_j S + (1 - h_j) phi(k_j)^T v_j`` and ``z <- h_j z + (1 - h_j) phi(k_j)``, ``h_j`` the entropy. The
    recursion is unrolled: pair j ends with the weight ``(1 - h_j) prod_i h_i`` over the i that come after it.

    Parameters
    ----------
    keys, values
        ``[H, M, D]`` and ``[H, M, Dv]`` of the candidates.
    attention
        ``[H, M]`` mean attention of the window.
    entropy
        ``[H, M]`` in [0, 1].
    evicted
        ``[H, M]`` bool.
    order
        ``[H, M]`` positions in the order in which they enter; None for rising positions.

    Returns
    -------
    Memory
        In fp64.
    """
    gate = torch.where(evicted, entropy.double(), 1.0)
    entering = gate if order is None else gate.gather(-1, order)
    later = entering.flip(-1).cumprod(dim=-1).flip(-1)
    after = torch.cat([later[:, 1:], torch.ones_like(later[:, :1])], dim=-1)
    if order is not None:
        after = torch.empty_like(after).scatter_(-1, order, after)
    state = torch.zeros(*keys.shape[::2], values.shape[-1], dtype=torch.float64, device=keys.device)
    normaliser = torch.zeros_like(state[..., 0])
    # By blocks, so that no copy of all keys in fp64 is made.
    blocks = (torch.split(tensor, _BLOCK, dim=1) for tensor in (keys, values, ((1 - gate) * after)[..., None]))
    for key, value, weight in zip(*blocks, strict=True):
        weighted = (F.elu(key) + 1).double() * weight
        state += weighted.transpose(1, 2) @ value.double()
        normaliser += weighted.sum(dim=1)
    share = (attention.double() * evicted).sum(-1).clamp(0, 1)
    return Memory(state, normaliser, share)


def state_tokens(key_dim: int, value_dim: int) -> int:
    """What the state costs per head in tokens of a cache: ``(D Dv + D) / (D + Dv)``, rounded up."""
    return math.ceil((key_dim * value_dim + key_dim) / (key_dim + value_dim))
