"""The cloud of vectors of each head: everything that one pass over them gives, for all tables of the analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ecokv_cli.geometry.similarity import parts, room, tame, working
from ecokv_cli.geometry.spread import Centre


@dataclass(frozen=True)
class Cloud:
    """Statistics of the vectors ``k_i`` of H heads with unit vectors ``u_i``; everything fp64.

    Attributes
    ----------
    lengths
        ``[H, N]``: norms ``||k_i||``, in the units of the vectors.
    distances
        ``[H, N]``: distances to the centroid, in the units of the vectors.
    alignment
        ``[H, N]``: ``<u_i, mean u>``, in [-1, 1]; how far a vector points with the rest. The mean cosine of vector i
        to all others is ``(N alignment_i - 1) / (N - 1)``.
    centroid, direction
        ``[H, D]``: mean vector and mean unit vector.
    covariance
        ``[H, D, D]``: population covariance of the vectors; its trace is the mean squared distance.
    cosine_mean
        ``[H]`` in [-1/(N-1), 1]: mean cosine over all pairs i != j; 0 by definition for a single vector.
    cosine_std
        ``[H]`` >= 0: population standard deviation of the cosine over the same pairs.
    zero
        ``[H]`` number of zero vectors; they count with cosine 0.
    """

    lengths: torch.Tensor
    distances: torch.Tensor
    alignment: torch.Tensor
    centroid: torch.Tensor
    direction: torch.Tensor
    covariance: torch.Tensor
    cosine_mean: torch.Tensor
    cosine_std: torch.Tensor
    zero: torch.Tensor


def survey(vectors: torch.Tensor) -> Cloud:
    r"""Measure the cloud of every head.

    With ``e_i = u_i - ubar``, ``ubar = mean u_i``, ``W = sum ||e_i||^2`` and z zero vectors::

        cosine_mean  = (N - z) / N - W / (N - 1)
        alignment_i  = (s + ||u_i||^2 - ||e_i||^2) / 2        with s = ||ubar||^2 = (N - z - W) / N
        sum_ij (u_i.u_j - s)^2 = 2 N sum (alignment_i - s)^2 + ||sum e_i e_i^T||_F^2
        cosine_std^2 = (that sum - (N - z)(1 - s)^2 - z s^2) / (N (N - 1)) - (cosine_mean - s)^2

    Everything comes from lengths of centred vectors, so it stays accurate where all cosines are close to 1 and for
    a tight cluster far from the origin; only a `cosine_std` below about 1e-8 is rounding. Vectors are read in blocks,
    so memory does not grow with N beyond the three ``[H, N]`` results; matrix products are fp32, sums over blocks fp64.
    Where a vector is zero, or so short or long that fp32 could not hold its square, everything is fp64.

    Parameters
    ----------
    vectors
        ``[H, N, D]`` finite, on the CPU.

    Returns
    -------
    Cloud
        Equal to brute force over all pairs and positions.
    """
    rows = working(vectors)
    n = rows.shape[1]
    raw = _add_up(rows, rows.dtype)
    zero = (raw.lengths == 0).sum(1, dtype=torch.float64)
    squares = raw.spread.square()
    total = (squares.sum(1) - n * raw.shift.square().sum(1)).clamp_min(0)
    s = (n - zero - total) / n
    above = ((raw.lengths > 0).double() - s[:, None] - squares) / 2
    unit_scatter = raw.unit_scatter - n * raw.shift[:, :, None] * raw.shift[:, None]
    mean, std = _cosine_moments(n, zero, total, 2 * n * above.square().sum(1) + unit_scatter.square().sum((1, 2)))
    return Cloud(
        lengths=raw.lengths,
        distances=raw.distances,
        alignment=above + s[:, None],
        centroid=raw.centroid,
        direction=raw.rough + raw.shift,
        covariance=raw.scatter / n,
        cosine_mean=mean,
        cosine_std=std,
        zero=zero.long(),
    )


class _Raw(NamedTuple):
    """Sums over the vectors of each head, fp64: `rough` is nearly the mean unit vector and `shift` what it lacks.

    `spread` holds the lengths of the unit vectors minus `rough`, and the two scatters sum the outer products of the
    centred vectors, and of these.
    """

    lengths: torch.Tensor
    distances: torch.Tensor
    spread: torch.Tensor
    centroid: torch.Tensor
    rough: torch.Tensor
    shift: torch.Tensor
    scatter: torch.Tensor
    unit_scatter: torch.Tensor


def _add_up(rows: torch.Tensor, dtype: torch.dtype) -> _Raw:
    heads, n, dim = rows.shape
    # Memory that is new costs more than the work in it: all blocks are worked on in the same.
    buffer = room(rows, dtype)
    norms, factors, centre, rough = _first_pass(rows, buffer)
    if dtype != torch.float64 and not tame(norms):
        return _add_up(rows, torch.float64)
    distances, spread = buffer.new_empty(2, heads, n)
    scatter, unit_scatter = torch.zeros(2, heads, dim, dim, dtype=torch.float64)
    shift = torch.zeros(heads, dim, dtype=torch.float64)
    for part in parts(rows):
        block = rows[:, part].to(dtype)
        work = buffer[:, : block.shape[1]]
        centred = centre.subtract(block, out=work)
        distances[:, part] = torch.linalg.vector_norm(centred, dim=-1)
        _add_products(scatter, centred)
        turned = torch.addcmul(-rough, block, factors[:, part, None], out=work)
        spread[:, part] = torch.linalg.vector_norm(turned, dim=-1)
        _add_products(unit_scatter, turned)
        shift += turned.sum(1)
    half = dim // 2
    for sums in (scatter, unit_scatter):
        sums[:, half:, :half] = sums[:, :half, half:].mT
    return _Raw(
        norms.double(), distances.double(), spread.double(), centre.exact[:, 0], rough[:, 0].double(), shift / n,
        scatter, unit_scatter,
    )  # fmt: skip


def _first_pass(rows: torch.Tensor, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Centre, torch.Tensor]:
    """Lengths and their inverses, centroid, and nearly the mean unit vector, read together: reading takes the time."""
    heads, n, dim = rows.shape
    norms, factors = buffer.new_empty(2, heads, n)
    reference = rows[:, n // 2, None].to(buffer.dtype)
    near, direction = torch.zeros(2, heads, 1, dim, dtype=torch.float64)
    for part in parts(rows):
        block = rows[:, part].to(buffer.dtype)
        length = torch.linalg.vector_norm(block, dim=-1)
        # A zero vector stays zero whatever its factor.
        factor = length.clamp_min(torch.finfo(length.dtype).tiny).reciprocal_()
        norms[:, part], factors[:, part] = length, factor
        near += torch.sub(block, reference, out=buffer[:, : block.shape[1]]).sum(1, keepdim=True)
        direction += factor[:, None] @ block
    return norms, factors, Centre.around(reference, near / n), (direction / n).to(buffer.dtype)


def _add_products(sums: torch.Tensor, vectors: torch.Tensor) -> None:
    """Add ``sum v v^T`` per head, all but the lower left quarter, which mirrors the upper right one."""
    half = vectors.shape[-1] // 2
    right = vectors[..., half:]
    sums[:, :half] += vectors[..., :half].mT @ vectors
    sums[:, half:, half:] += right.mT @ right


def _cosine_moments(
    n: int, zero: torch.Tensor, spread: torch.Tensor, squares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation from W and ``sum_ij (u_i.u_j - s)^2``; see `survey`."""
    if n < 2:
        return torch.zeros_like(spread), torch.zeros_like(spread)
    s = (n - zero - spread) / n
    mean = (n - zero) / n - spread / (n - 1)
    pairs = n * (n - 1)
    if n == 2:
        return mean, torch.zeros_like(mean)
    variance = (squares - (n - zero) * (1 - s).square() - zero * s.square()) / pairs - (spread / pairs).square()
    return mean, variance.clamp_min(0).sqrt()
