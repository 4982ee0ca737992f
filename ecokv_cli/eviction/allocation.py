"""How a budget is spread over layers and heads: integers whose total is exact.

Budgets here are *free* slots: what is left per KV head once the protected window is kept. ``compat`` chooses the
rounding: ``exact`` spends the nominal total to the token, ``reference`` repeats the rounding of the published code,
``kvcache_factory`` and ``kvpress`` that of these libraries.
"""

from __future__ import annotations

from typing import Literal

import torch

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.selection import last_kept, top_mask

Compat = Literal["exact", "reference", "kvcache_factory", "kvpress"]


def largest_remainder(shares: torch.Tensor, total: int, cap: int) -> torch.Tensor:
    """Split `total` in proportion to `shares`, in whole numbers of at most `cap`, with an exact sum.

    Entries whose quota exceeds the cap are set to it and the rest is shared again among the others (evenly when
    their shares are all 0), until none exceeds it. Quotas are then rounded down and the missing ones go to the
    largest fractions, the lower index first.

    Parameters
    ----------
    shares
        ``[K]`` finite, >= 0.
    total
        What to spend.
    cap
        Most that one entry can take.

    Returns
    -------
    torch.Tensor
        ``[K]`` int64 in [0, cap] with sum ``min(total, K cap)``.
    """
    shares = shares.double()
    quotas = torch.full_like(shares, float(cap))
    is_open = torch.ones_like(shares, dtype=torch.bool)
    left = float(min(total, len(shares) * cap))
    while is_open.any():
        weights = torch.where(is_open, shares, 0.0)
        if weights.sum() == 0:
            weights = is_open.double()
        quotas = torch.where(is_open, weights * (left / weights.sum()), quotas)
        # Quotas a rounding error above the cap are at the cap, not beyond it.
        over = is_open & (quotas > cap + 1e-9 * max(cap, 1))
        if not over.any():
            break
        quotas[over] = float(cap)
        left -= float(cap * over.sum())
        is_open &= ~over
    # Equal shares must tie in spite of rounding, so fractions are compared to nine digits.
    counts = (quotas + 5e-10).floor().clamp(0, cap)
    missing = min(total, len(shares) * cap) - int(counts.sum())
    fraction = torch.where(counts < cap, (quotas - counts).round(decimals=9), -torch.inf)
    counts[fraction.argsort(descending=True, stable=True)[:missing]] += 1
    return counts.long()


def pyramid_counts(
    layers: int, budget: int, window: int, tokens: int, beta: int = 20, compat: Compat = "exact"
) -> torch.Tensor:
    """PyramidKV: free slots per layer, falling linearly with depth.

    With ``C = budget - window`` and ``M = tokens - window``: ``hi = 2C - C / beta``, at most M; ``lo = 2C - hi``;
    layer l gets ``hi - l (hi - lo) / (L - 1)``.

    Parameters
    ----------
    layers
        L; a single layer gets C.
    budget, window, tokens
        Per KV head: nominal budget, protected window, prompt length.
    beta
        Steepness: the last layer keeps about ``C / beta``.
    compat
        ``exact``: largest remainder, sum L C. ``reference``: integer ``C // beta`` and a floored step, which
        overspends. ``kvcache_factory``: the same, but flat where the prompt is shorter than 2C. ``kvpress``: the ramp
        is over the whole budget with the window inside, each layer rounded half to even, and flat where the ramp does
        not fit between window and prompt.

    Returns
    -------
    torch.Tensor
        ``[L]`` int64 in [0, M].

    Notes
    -----
    PyramidKV, arXiv 2406.02069. Published code keeps the schedule of the first prompt it sees; here every prompt
    has its own.
    """
    free, candidates = budget - window, tokens - window
    depth = torch.arange(layers, dtype=torch.float64)
    if layers == 1:
        return torch.full((1,), free)
    if compat == "kvpress":
        high = min(2 * budget - budget / beta, candidates)
        low = 2 * budget - high
        if not tokens >= high >= low >= window:
            return torch.full((layers,), free).clamp(0, candidates)
        return ((high - depth * ((high - low) / (layers - 1))).round().long() - window).clamp(0, candidates)
    if compat == "kvcache_factory" and tokens < 2 * free:
        return torch.full((layers,), free).clamp(0, candidates)
    if compat in ("reference", "kvcache_factory"):
        low, high = free // beta, 2 * free - free // beta
        if high >= candidates:
            low, high = 2 * free - candidates, candidates
        return (high - depth.long() * ((high - low) // (layers - 1))).clamp(0, candidates)
    high = min(2 * free - free / beta, candidates)
    ramp = high - depth * ((2 * high - 2 * free) / (layers - 1))
    return largest_remainder(ramp.clamp_min(0), layers * free, candidates)


def ada_counts(
    scores: torch.Tensor,
    budget: int,
    window: int,
    floor: float = 0.2,
    normalise: bool = False,
    compat: Compat = "exact",
) -> torch.Tensor:
    """AdaKV: free slots per head of one layer, by where the layer's highest scores lie.

    With ``C = budget - window``: ``raw_h`` is how many of the H C highest scores of the layer are in head h (equal
    scores go to the lower head and position); head h gets ``floor C + (1 - floor) raw_h``.

    Parameters
    ----------
    scores
        ``[H, M]`` host scores.
    budget, window
        Nominal budget per KV head and protected window.
    floor
        Share of the budget that every head gets in any case, in [0, 1].
    normalise
        Multiply the scores of head h by ``(sum of its top C) / (its sum)`` first; needs scores >= 0.
    compat
        ``exact``: largest remainder, sum H C. ``reference`` and ``kvcache_factory``:
        ``round(int(floor C) + (1 - floor) raw_h)`` half to even, which loses slots. ``kvpress``: the
        ``int(floor budget)`` best of each head are safe, window included, and the highest of all other scores fill
        up; exact, but another rule.

    Returns
    -------
    torch.Tensor
        ``[H]`` int64 in [0, M].

    Raises
    ------
    MethodError
        If scores to be normalised are negative.

    Notes
    -----
    AdaKV, arXiv 2407.11550.
    """
    heads, candidates = scores.shape
    free = budget - window
    if normalise:
        if scores.numel() and scores.min() < 0:
            raise MethodError(
                "adakv: normalise=true weighs heads by shares of their scores, and some of these are negative; "
                "leave it out, or write allocate=host"
            )
        ordered = scores.sort(dim=-1, descending=True).values.double()
        scores = scores * (ordered[:, :free].sum(-1) / ordered.sum(-1).clamp_min(1e-300)).to(scores.dtype)[:, None]
    if compat == "kvpress":
        safe = max(int(budget * floor), int(floor > 0))
        pinned = max(safe - window, 0)
        taken = top_mask(scores, torch.full((heads,), pinned, device=scores.device))
        return pinned + _wins(scores.masked_fill(taken, -torch.inf), heads * (free - pinned))
    raw = _wins(scores, heads * free)
    if compat in ("reference", "kvcache_factory"):
        return (raw.double() * (1 - floor) + int(free * floor)).round().long().clamp(0, candidates)
    return largest_remainder(floor * free + (1 - floor) * raw.double(), heads * free, candidates).to(scores.device)


def _wins(scores: torch.Tensor, total: int) -> torch.Tensor:
    """How many of the `total` highest scores are in each row; equal ones count for the lower row first."""
    if total == 0:
        return torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    bar = last_kept(scores.reshape(1, -1), [total])
    above = (scores > bar).sum(-1)
    tied = (scores == bar).sum(-1)
    room = total - above.sum() - (tied.cumsum(0) - tied)
    return above + torch.minimum(tied, room.clamp_min(0))


def sparse_counts(
    head_scores: torch.Tensor,
    kv_heads: int,
    budget: int,
    window: int,
    tokens: int,
    floor: float = 0.1,
    compat: Compat = "exact",
) -> torch.Tensor:
    """SparseMM: free slots of every KV head of the model, by its visual-head scores.

    With ``C = budget - window`` and p the scores divided by their sum, added up over the query heads of a group:
    ``floor C + p[l, g] (1 - floor) C L H``.

    Parameters
    ----------
    head_scores
        ``[L, H_q]`` finite, >= 0, not all 0.
    kv_heads
        H.
    budget, window, tokens
        Per KV head: nominal budget, protected window, prompt length.
    floor
        Share of the budget that every head gets in any case, in [0, 1].
    compat
        ``exact``: largest remainder with sum L H C; what a head cannot hold goes to the others. ``reference``:
        rounded one by one and cut at M, where the surplus is lost.

    Returns
    -------
    torch.Tensor
        ``[L, H]`` int64 in [0, M], ``M = tokens - window``.

    Notes
    -----
    SparseMM, arXiv 2506.05344. In ``exact`` the floor is not truncated to a whole number first.
    """
    layers, query_heads = head_scores.shape
    free, candidates = budget - window, tokens - window
    shares = (head_scores.double() / head_scores.double().sum()).view(layers, kv_heads, -1).sum(-1)
    if compat == "reference":
        least = int(free * floor)
        pool = (free - least) * layers * query_heads // (query_heads // kv_heads)
        return (shares * pool + least).round().long().clamp(0, candidates)
    total = layers * kv_heads * free
    wanted = free * floor + shares * (total * (1 - floor))
    return largest_remainder(wanted.flatten(), total, candidates).view(layers, kv_heads)
