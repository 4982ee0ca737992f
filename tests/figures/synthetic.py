"""Result tables as `ecokv analyze` and `ecokv evict` write them, with made-up but plausible numbers."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass

import numpy as np

from ecokv_cli.studies.tables import Table

METHODS = ("full", "random", "snapkv", "keydiff", "snapkv+mixkv", "snapkv+ecokv", "oracle")
WINDOWS = {"full": 0, "random": 32, "snapkv": 32, "keydiff": 0, "snapkv+mixkv": 32, "snapkv+ecokv": 4, "oracle": 0}
SKILL = {"random": 0.3, "keydiff": 0.45, "snapkv": 0.62, "snapkv+mixkv": 0.68, "snapkv+ecokv": 0.74, "oracle": 0.9}
BUDGETS = (16, 32, 64, 96)
HEAD = ("model", "sample")
WHO = {"model": "tiny", "sample": "page"}

TENSORS = ("keys", "values")
GEOMETRY = (
    *(*HEAD, "layer", "kv_head", "tensor", "tokens", "zero_keys", "sinks", "cos_mean", "cos_mean_no_sinks", "cos_std"),
    *("norm_mean", "norm_std", "norm_min", "norm_max", "dist_mean", "dist_per_norm"),
    *("pca_1", "effective_rank", "participation_ratio", "r_cos", "r_euc", "lambda_ecokv", "lambda_mixkv"),
    *("lambda_std", "spearman", "spearman_n", "spearman_p", "spearman_note"),
)
MAPS = ("sigmoid", "sigmoid2", "exp", "inverse", "minmax")


@dataclass(frozen=True)
class Prompt:
    """Positions of a made-up prompt: specials, an image of rows x cols tokens, text."""

    rows: int = 13
    cols: int = 11
    text: int = 17

    @property
    def roles(self) -> list[str]:
        return ["special"] * 3 + ["image"] * (self.rows * self.cols) + ["special"] * 2 + ["text"] * self.text

    def cell(self, position: int) -> tuple[int | None, int | None, int | None]:
        """Image, row and column of a position."""
        if self.roles[position] != "image":
            return None, None, None
        return (0, *divmod(position - 3, self.cols))


def _rng(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def cosine_level(layer: int, layers: int) -> float:
    """Mean pairwise cosine: near 1 in the first layer, low in the middle, rising late."""
    depth = layer / max(layers - 1, 1)
    return float(0.42 + 0.56 * np.exp(-9 * depth) + 0.25 * depth**3)


def _cloud(layers: int, heads: int, layer: int, head: int, tensor: str, sample: str) -> dict[str, float]:
    """Cosine, norm and distance of one head, and the redundancies that follow."""
    rng = _rng("geometry", layers, heads, layer, head, tensor, sample)
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
        rng = _rng("method", layers, heads, layer, head)
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
    roles = Prompt().roles
    for layer, head, tensor in itertools.product(range(layers), range(heads), tensors):
        rng = _rng("roles", layers, heads, layer, head, tensor)
        weights = {role: roles.count(role) * float(np.exp(0.4 * rng.standard_normal())) for role in _EXCESS}
        weights = {role: weight * _EXCESS[role] for role, weight in weights.items()}
        level = cosine_level(layer, layers)
        for role, weight in weights.items():
            cosines = {"cos_within": level + 0.1 * float(rng.random()), "cos_rest": level - 0.2}
            share = weight / sum(weights.values())
            place = {"layer": layer, "kv_head": head, "tensor": tensor, "role": role, "tokens": roles.count(role)}
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
        rng = _rng(table.name, i)
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
    columns = ("layer", "kv_head", "tensor", "bin_low", "bin_high", "share", "pairs", "exact")
    table = Table("cosine_histogram", (*HEAD, *columns))
    edges = np.round(np.linspace(-1, 1, 101), 2)
    for layer in range(layers):
        for head in range(heads):
            rng = _rng("histogram", layers, heads, layer, head)
            level = cosine_level(layer, layers)
            draws = np.tanh(np.arctanh(level) + 0.05 * rng.standard_normal() + 0.4 * rng.standard_normal(3001))
            counts, _ = np.histogram(draws, edges)
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
                span = {"bin_low": float(low), "bin_high": float(high), "share": float(count / 3001)}
                table.add(**WHO, layer=layer, kv_head=head, tensor="keys", **span, pairs=3001, exact=False)
    return table


def pca(chosen: list[tuple[int, int]], prompt: Prompt | None = None) -> Table:
    prompt = prompt or Prompt()
    table = Table("pca", (*HEAD, "layer", "kv_head", "tensor", "position", "role", "pc1", "pc2", "ev1", "ev2"))
    centres = {"image": (0, 0), "text": (5, 3), "special": (9, -2)}
    for layer, head in chosen:
        rng = _rng("pca", layer, head)
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


def fidelity(
    layers: int, heads: int, methods: tuple[str, ...] = METHODS, budgets: tuple[int, ...] = BUDGETS, tokens: int = 165
) -> Table:
    columns = ("method", "budget", "window", "layer", "kv_head", "kept", "mass", "output_error", "output_cosine")
    table = Table("fidelity", (*HEAD, *columns, "oracle_overlap"))
    for method in methods:
        for budget in budgets:
            rng = _rng("fidelity", layers, heads, method, budget)
            skill = SKILL.get(method, 0.6)
            level = 1.0 if method == "full" else 1 - (1 - skill) * np.exp(-1.6 * budget / tokens)
            for layer in range(layers):
                for head in range(heads):
                    noise = 0 if method == "full" else (1 - level) * 0.5 * rng.standard_normal()
                    mass = float(np.clip(level + noise, 0, 1))
                    where = {"method": method, "budget": budget, "window": WINDOWS.get(method, 32)}
                    scores = {
                        "mass": mass,
                        "output_error": 1.4 * (1 - mass),
                        "output_cosine": 1 - 0.6 * (1 - mass) ** 2,
                    }
                    kept = tokens if method == "full" else min(budget, tokens)
                    place = {"layer": layer, "kv_head": head, "kept": kept, "oracle_overlap": mass**2}
                    table.add(**WHO, **where, **place, **scores)
    return table


def _attraction(method: str, prompt: Prompt) -> np.ndarray:
    """How much a method likes each position: blobs on the image, text and the window."""
    rng = _rng("attraction", method)
    roles = np.array(prompt.roles)
    like = 0.3 * rng.random(len(roles))
    rows, cols = np.divmod(np.arange(prompt.rows * prompt.cols), prompt.cols)
    for _ in range(1 if method == "random" else 4):
        row, col = rng.integers(prompt.rows), rng.integers(prompt.cols)
        bump = np.exp(-((rows - row) ** 2 / 1.5 + (cols - col) ** 2 / 6))
        like[roles == "image"] += 0 if method == "random" else bump
    if method not in ("random", "keydiff"):
        like[roles == "text"] += 0.5
    window = WINDOWS.get(method, 4)
    if window:
        like[-min(window, 7) :] += 3
    return like


def _kept(method: str, budget: int, prompt: Prompt, heads: int = 17) -> np.ndarray:
    """Boolean keep masks [heads, positions]."""
    like = _attraction(method, prompt)
    if method == "full":
        return np.ones((heads, like.size), dtype=bool)
    noisy = like + 0.25 * _rng("kept", method, budget).standard_normal((heads, like.size))
    rank = np.argsort(np.argsort(-noisy, axis=1), axis=1)
    return rank < budget


def positions(methods: tuple[str, ...] = METHODS, budget: int = 32, prompt: Prompt | None = None) -> Table:
    prompt = prompt or Prompt()
    columns = ("method", "budget", "layer", "kv_head", "position", "role", "image", "row", "col", "kept")
    table = Table("positions", (*HEAD, *columns))
    for method in methods:
        masks = _kept(method, budget, prompt)
        for layer, head, share in (("all", "all", masks.mean(0)), (3, 1, masks[0])):
            for position, role in enumerate(prompt.roles):
                image, row, col = prompt.cell(position)
                place = {"layer": layer, "kv_head": head, "position": position, "role": role}
                cell = {"image": image, "row": row, "col": col, "kept": float(share[position])}
                table.add(**WHO, method=method, budget=budget, **place, **cell)
    return table


def roles(methods: tuple[str, ...] = METHODS, budgets: tuple[int, ...] = BUDGETS) -> Table:
    prompt = Prompt()
    columns = ("method", "budget", "role", "tokens", "kept_tokens", "share_of_kept", "share_of_role")
    table = Table("roles", (*HEAD, *columns))
    where = np.array(prompt.roles)
    for method in methods:
        for budget in budgets:
            mask = _kept(method, budget, prompt).mean(0)
            for role in ("text", "image", "special"):
                kept, tokens = float(mask[where == role].sum()), int((where == role).sum())
                shares = {"share_of_kept": kept / float(mask.sum()), "share_of_role": kept / tokens}
                table.add(**WHO, method=method, budget=budget, role=role, tokens=tokens, kept_tokens=kept, **shares)
    return table


def recency(methods: tuple[str, ...] = METHODS, budgets: tuple[int, ...] = BUDGETS) -> Table:
    prompt = Prompt()
    table = Table("recency", (*HEAD, "method", "budget", "age_low", "age_high", "kept"))
    for method in methods:
        for budget in budgets:
            by_age = _kept(method, budget, prompt).mean(0)[::-1]
            for low in range(0, len(by_age), 7):
                part = by_age[low : low + 7]
                span = {"age_low": low, "age_high": low + len(part) - 1, "kept": float(part.mean())}
                table.add(**WHO, method=method, budget=budget, **span)
    return table


def overlap(methods: tuple[str, ...] = METHODS, budgets: tuple[int, ...] = BUDGETS) -> Table:
    prompt = Prompt()
    table = Table("overlap", (*HEAD, "budget", "method_a", "method_b", "jaccard"))
    for budget in budgets:
        masks = {m: _kept(m, budget, prompt) for m in methods}
        for i, a in enumerate(methods):
            for b in methods[i:]:
                both, either = (masks[a] & masks[b]).sum(1), (masks[a] | masks[b]).sum(1)
                table.add(**WHO, budget=budget, method_a=a, method_b=b, jaccard=float((both / either).mean()))
    return table
