"""Cosine similarity of the keys of one head, in closed form.

Every function takes ``vectors [H, N, D]`` (one row of heads, N positions) and works in fp32, or fp64 when
the input is fp64, with fp64 reductions. Nothing here builds an N x N matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


def working(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the precision that analysis uses: half precision becomes fp32, fp64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def unit_vectors(vectors: torch.Tensor) -> torch.Tensor:
    """Rows divided by their Euclidean norm, ``u_i = k_i / ||k_i||``; a zero row stays zero.

    Parameters
    ----------
    vectors
        ``[H, N, D]``.

    Returns
    -------
    torch.Tensor
        ``[H, N, D]``; cosines are dot products of its rows, and a zero vector has cosine 0 with everything.
    """
    vectors = working(vectors)
    # The largest entry is divided out first: squares of bf16-sized values can overflow fp32.
    peak = vectors.abs().amax(dim=-1, keepdim=True)
    scaled = vectors / torch.where(peak > 0, peak, torch.ones_like(peak))
    norm = scaled.norm(dim=-1, keepdim=True)
    return scaled / torch.where(norm > 0, norm, torch.ones_like(norm))


@dataclass(frozen=True)
class CosineMoments:
    """Mean and standard deviation of the pairwise cosine, per head.

    Attributes
    ----------
    mean
        ``[H]`` fp64 in [-1/(N-1), 1]: mean of ``cos(k_i, k_j)`` over pairs i != j. 1 means that all keys point the
        same way, 0 that they are spread evenly or orthogonal. 0 by definition for a single key.
    std
        ``[H]`` fp64 >= 0: population standard deviation over the same pairs.
    zero_keys
        ``[H]`` number of keys of norm zero; they count with cosine 0.
    """

    mean: torch.Tensor
    std: torch.Tensor
    zero_keys: torch.Tensor


def cosine_moments(units: torch.Tensor) -> CosineMoments:
    r"""Mean and standard deviation over all pairs i != j without forming the pairs.

    With ``ubar = mean u_i``, ``s = ||ubar||^2``, ``e_i = u_i - ubar``, ``a_i = <ubar, e_i>`` and z zero keys::

        mean     = (N^2 s - (N - z)) / (N (N - 1))
        sum_ij (u_i.u_j - s)^2 = 2 N sum a_i^2 + ||E^T E||_F^2
        variance = (that sum - (N - z)(1 - s)^2 - z s^2) / (N (N - 1)) - (mean - s)^2

    The centred form keeps its accuracy when all cosines are close to 1, where ``E[cos^2] - mean^2`` cancels.

    Parameters
    ----------
    units
        ``[H, N, D]`` from `unit_vectors`.

    Returns
    -------
    CosineMoments
        Equal to the brute-force moments over the N (N - 1) ordered pairs.
    """
    heads, n, _ = units.shape
    zero = (units == 0).all(dim=-1).sum(dim=-1).double()
    if n < 2:
        nothing = torch.zeros(heads, dtype=torch.float64, device=units.device)
        return CosineMoments(nothing, nothing.clone(), zero.long())
    centre = units.mean(dim=1, dtype=torch.float64)
    s = centre.square().sum(dim=-1)
    pairs = n * (n - 1)
    mean = (n * n * s - (n - zero)) / pairs
    spread = units - centre.to(units.dtype)[:, None]
    along = torch.einsum("hnd,hd->hn", spread, centre.to(units.dtype))
    gram = spread.transpose(1, 2) @ spread
    total = 2 * n * along.square().sum(-1, dtype=torch.float64) + gram.square().sum((1, 2), dtype=torch.float64)
    total = total - (n - zero) * (1 - s).square() - zero * s.square()
    variance = total / pairs - (mean - s).square()
    return CosineMoments(mean, variance.clamp_min(0).sqrt(), zero.long())


def sample_cosines(units: torch.Tensor, size: int, seed: int) -> torch.Tensor:
    """Cosines of random pairs i < j, the same pairs for every head.

    All pairs are returned, in order, when there are no more than `size` of them; otherwise `size` pairs drawn
    independently and uniformly (with replacement) from a generator seeded with `seed`.

    Parameters
    ----------
    units
        ``[H, N, D]`` from `unit_vectors`.
    size
        How many pairs to draw.
    seed
        Seed of the draw; state it beside every number made from the sample.

    Returns
    -------
    torch.Tensor
        ``[H, min(size, N (N - 1) / 2)]`` in [-1, 1]; empty for a single key.
    """
    n = units.shape[1]
    if n * (n - 1) // 2 <= size:
        first, second = torch.triu_indices(n, n, offset=1, device=units.device)
    else:
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(n, (size,), generator=generator)
        second = torch.randint(n - 1, (size,), generator=generator)
        second = second + (second >= first)
        first, second = first.to(units.device), second.to(units.device)
    return torch.stack([(head[first] * head[second]).sum(-1) for head in units]).clamp(-1, 1)
