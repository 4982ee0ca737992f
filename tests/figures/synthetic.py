"""Result tables as `ecokv analyze` writes them, with made-up but plausible numbers; those of `ecokv evict` beside."""

from __future__ import annotations

import itertools

import numpy as np
from synthetic_eviction import (  # noqa: F401 - users find all tables here
    BUDGETS,
    HEAD,
    METHODS,
    WHO,
    Prompt,
    fidelity,
    generator,
    overlap,
    positions,
    recency,
    roles,
)

from ecokv_cli.studies.tables import Table

TENSORS = ("keys", "values")
GEOMETRY = (
    *(*HEAD, "layer", "kv_head", "tensor", "tokens", "zero_keys", "sinks", "cos_mean", "cos_mean_no_sinks", "cos_std"),
    *("norm_mean", "norm_std", "norm_min", "norm_max", "dist_mean", "dist_per_norm"),
    *("pca_1", "effective_rank", "participation_ratio", "r_cos", "r_euc", "lambda_ecokv", "lambda_mixkv"),
    *("lambda_std", "spearman", "spearman_n", "spearman_p", "spearman_note"),
)
MAPS = ("sigmoid", "sigmoid2", "exp", "inverse", "minmax")


def cosine_level(layer: int, layers: int) -> float:
    """Mean pairwise cosine: near 1 in the first layer, low in the middle, rising late."""
    depth = layer / max(layers - 1, 1)
    return float(0.42 + 0.56 * np.exp(-9 * depth) + 0.25 * depth**3)


def _cloud(layers: int, heads: int, layer: int, head: int, tensor: str, sample: str) -> dict[str, float]:
    """Cosine, norm and distance of one head, and the redundancies that follow."""
    rng = generator("geometry", layers, heads, layer, head, tensor, sample)
    level = cosine_level(layer, layers) * (1 if tensor == "keys" else 0.45)
    cos = float(np.clip(level + 0.07 * rng.standard_normal(), -0.1, 0.995))
    norm = float((9 if tensor == "keys" else 2) * np.exp(1.1 * np.sin(layer) + 0.15 * rng.standard_normal()))
    dist = norm * float(np.sqrt(1 - cos))
    x = dist / np.sqrt(32)
    maps = {"sigmoid": 1 / (1 + np.exp(x)), "sigmoid2": 2 / (1 + np.exp(x)), "exp": np.exp(-x), "inverse": 1 / (1 + x)}
    return {"cos": cos, "norm": norm, "dist": dist, "minmax": 0.6 + 0.1 * cos} | {k: float(v) for k, v in maps.items()}


def geometry(layers: int, heads: int, tokens: int = 165, tensors: tuple[str, ...] = TENSORS) -> Table:
    table = Table("geometry", GEOMETRY)
    for layer, head, tensor in itertools.product(range(layers), range(heads), tensors):
        cloud = _cloud(layers, heads, layer, head, tensor, "page")
        rng = generator("method", layers, heads, layer, head)
        values: dict[str, object] = dict.fromkeys(GEOMETRY) | WHO | {"layer": layer, "kv_head": head, "tensor": tensor}
        cos, norm, dist, euc = (cloud[c] for c in ("cos", "norm", "dist", "sigmoid"))
        values |= {"tokens": tokens, "zero_keys": 0, "sinks": 1, "cos_mean": cos, "cos_mean_no_sinks": cos + 0.03}
        values |= {
            "cos_std": 0.3 * (1 - cos),
            "dist_mean": dist,
            "dist_per_norm": dist / norm,
            "pca_1": 0.2 + 0.5 * cos,
        }
        values |= {"norm_mean": norm, "norm_std": 0.2 * norm, "norm_min": 0.1 * norm, "norm_max": 1.9 * norm}
        values |= {"effective_rank": 11 - 7 * cos, "participation_ratio": 6 - 4 * cos}
        if tensor == "keys":
            values |= {"r_cos": cos, "r_euc": euc, "lambda_mixkv": max(cos, 0), "lambda_std": 0.9 * euc}
            values |= {"lambda_ecokv": 0.6 * euc + 0.4 * max(cos, 0)}
            rho = 0.35 - 0.5 * np.sin(np.pi * layer / max(layers - 1, 1)) + 0.12 * rng.standard_normal()
            values |= {"spearman": float(np.clip(rho, -0.9, 0.9)), "spearman_n": tokens - 4}
            values |= {"spearman_p": 1e-3, "spearman_note": ""}
        table.add(**values)  # type: ignore[arg-type]
    return table


def redundancy(layers: int, heads: int) -> Table:
    where = ("layer", "kv_head", "tensor", "domain", "map")
    readings = ("r_cos", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std")
    table = Table("redundancy", (*HEAD, *where, *readings))
    for layer, head, tensor in itertools.product(range(layers), range(heads), TENSORS):
        cloud = _cloud(layers, heads, layer, head, tensor, "page")
        for domain, kind in itertools.product(("all", "candidates"), MAPS):
            cos = cloud["cos"] + (0.02 * np.sin(layer + head) if domain == "candidates" else 0)
            mixed = {"r_cos": cos, "r_euc": cloud[kind], "lambda_ecokv": 0.6 * cloud[kind] + 0.4 * max(cos, 0)}
            mixed |= {"lambda_mixkv": max(cos, 0), "lambda_std": 0.9 * cloud["sigmoid"]}
            place = {"layer": layer, "kv_head": head, "tensor": tensor, "domain": domain, "map": kind}
            table.add(**WHO, **place, **{name: float(value) for name, value in mixed.items()})
    return table


def role_table(layers: int, heads: int, tensors: tuple[str, ...] = TENSORS) -> Table:
    """`roles` of the analysis."""
    columns = ("layer", "kv_head", "tensor", "role", "tokens", "cos_within", "cos_rest", "variance_share")
    table = Table("roles", (*HEAD, *columns))
    named = Prompt().roles
    for layer, head, tensor in itertools.product(range(layers), range(heads), tensors):
        rng = generator("roles", layers, heads, layer, head, tensor)
        weights = {role: named.count(role) * float(np.exp(0.4 * rng.standard_normal())) for role in _EXCESS}
        weights = {role: weight * _EXCESS[role] for role, weight in weights.items()}
        level = cosine_level(layer, layers)
        for role, weight in weights.items():
            cosines = {"cos_within": level + 0.1 * float(rng.random()), "cos_rest": level - 0.2}
            share = weight / sum(weights.values())
            place = {"layer": layer, "kv_head": head, "tensor": tensor, "role": role, "tokens": named.count(role)}
            table.add(**WHO, **place, **cosines, variance_share=share)
    return table


_EXCESS = {"text": 2.0, "image": 1.0, "special": 4.0}


def regions(layers: int, tensors: tuple[str, ...] = TENSORS) -> Table:
    place = ("layer", "tensor", "image", "region_row", "region_col")
    table = Table("regions", (*HEAD, *place, "tokens", "norm_mean", "dist_mean", "dist_relative", "cos_to_mean"))
    for layer, tensor, row, col in itertools.product(range(layers), tensors, range(3), range(3)):
        far = 1 + 0.1 * (row - 1) * (1 if layer < layers / 2 else -1) + 0.03 * (col - 1)
        where = {"layer": layer, "tensor": tensor, "image": 0, "region_row": row, "region_col": col}
        numbers = {"norm_mean": 7.0, "dist_mean": 5 * far, "dist_relative": far, "cos_to_mean": 0.7 - 0.4 * (far - 1)}
        table.add(**WHO, **where, tokens=13, **numbers)
    return table


def sinks(layers: int) -> Table:
    columns = ("layer", "position", "token", "role", "reason", "attention", "key_norm_relative")
    table = Table("sinks", (*HEAD, *columns))
    for layer in range(layers):
        first = {"position": 0, "token": "<|im_start|>", "role": "special", "reason": "attention+norm"}
        table.add(**WHO, layer=layer, **first, attention=60.0 + layer, key_norm_relative=0.3)
        if layer % 3 == 1:
            other = {"position": 17, "token": "<|image_pad|>", "role": "image", "reason": "attention"}
            table.add(**WHO, layer=layer, **other, attention=12.0 + layer, key_norm_relative=0.9)
    return table


def sampled(table: Table, count: int) -> Table:
    """The table for several samples: numbers of later ones are a little off those of the first."""
    rows = list(table.rows)
    for i in range(1, count):
        rng = generator(table.name, i)
        for row in table:
            noise = float(1 + 0.12 * np.clip(rng.standard_normal(), -2, 2))
            drift = {c: v * noise for c, v in row.items() if isinstance(v, float) and "bin" not in c}
            rows.append(row | drift | {"sample": f"page{i}"})
    return Table(table.name, table.columns, rows)


def undefine(table: Table, *where: tuple[int, int]) -> Table:
    """The table with the numbers of some (layer, kv_head) pairs undefined."""
    rows = [dict(row) for row in table]
    for row in rows:
        if (row["layer"], row["kv_head"]) in where:
            row |= {c: None for c, v in row.items() if isinstance(v, float)}
            row |= {"spearman": None, "spearman_p": None, "spearman_note": "importance is constant"}
    return Table(table.name, table.columns, rows)


def cosine_histogram(layers: int, heads: int) -> Table:
    columns = ("layer", "kv_head", "tensor", "bin_low", "bin_high", "share", "pairs", "exact", "seed")
    table = Table("cosine_histogram", (*HEAD, *columns))
    edges = np.round(np.linspace(-1, 1, 101), 2)
    for layer in range(layers):
        for head in range(heads):
            rng = generator("histogram", layers, heads, layer, head)
            level = cosine_level(layer, layers)
            draws = np.tanh(np.arctanh(level) + 0.05 * rng.standard_normal() + 0.4 * rng.standard_normal(3001))
            counts, _ = np.histogram(draws, edges)
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
                span = {"bin_low": float(low), "bin_high": float(high), "share": float(count / 3001)}
                table.add(**WHO, layer=layer, kv_head=head, tensor="keys", **span, pairs=3001, exact=False, seed=17)
    return table


def pca(chosen: list[tuple[int, int]], prompt: Prompt | None = None) -> Table:
    prompt = prompt or Prompt()
    table = Table("pca", (*HEAD, "layer", "kv_head", "tensor", "position", "role", "pc1", "pc2", "ev1", "ev2"))
    centres = {"image": (0, 0), "text": (5, 3), "special": (9, -2)}
    for layer, head in chosen:
        rng = generator("pca", layer, head)
        for position, role in enumerate(prompt.roles):
            x, y = np.array(centres[role]) + rng.standard_normal(2) * (2.5, 1.1)
            ratios = {"ev1": 0.413, "ev2": 0.127}
            where = {"layer": layer, "kv_head": head, "tensor": "keys", "position": position, "role": role}
            table.add(**WHO, **where, pc1=float(x), pc2=float(y), **ratios)
    return table


def plane(prompt: Prompt | None = None) -> Table:
    """Coordinates of the head whose kept positions are in `positions` beside those of all."""
    full = pca([(3, 1)], prompt)
    columns = tuple(c for c in full.columns if c != "tensor")
    return Table("plane", columns, [{c: row[c] for c in columns} for row in full])
