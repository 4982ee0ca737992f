"""A made-up prompt, and result tables of it as `ecokv evict` writes them, with plausible numbers."""

from __future__ import annotations

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


def generator(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def fidelity(
    layers: int, heads: int, methods: tuple[str, ...] = METHODS, budgets: tuple[float, ...] = BUDGETS, tokens: int = 165
) -> Table:
    columns = ("method", "budget", "window", "layer", "kv_head", "kept", "mass", "output_error", "output_cosine")
    table = Table("fidelity", (*HEAD, *columns, "oracle_overlap"))
    for method in methods:
        for budget in budgets:
            rng = generator("fidelity", layers, heads, method, budget)
            skill, size = SKILL.get(method, 0.6), round(budget * tokens) if budget < 1 else budget
            level = 1.0 if method == "full" else 1 - (1 - skill) * np.exp(-1.6 * size / tokens)
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
                    kept = tokens if method == "full" else min(size, tokens)
                    place = {"layer": layer, "kv_head": head, "kept": kept, "oracle_overlap": mass**2}
                    table.add(**WHO, **where, **place, **scores)
    return table


def _attraction(method: str, prompt: Prompt) -> np.ndarray:
    """How much a method likes each position: blobs on the image, text and the window."""
    rng = generator("attraction", method)
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


def _kept(method: str, budget: float, prompt: Prompt, heads: int = 17) -> np.ndarray:
    """Boolean keep masks [heads, positions]."""
    like = _attraction(method, prompt)
    if method == "full":
        return np.ones((heads, like.size), dtype=bool)
    noisy = like + 0.25 * generator("kept", method, budget).standard_normal((heads, like.size))
    rank = np.argsort(np.argsort(-noisy, axis=1), axis=1)
    return rank < (budget * like.size if budget < 1 else budget)


def positions(methods: tuple[str, ...] = METHODS, budget: float = 32, prompt: Prompt | None = None) -> Table:
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


def roles(methods: tuple[str, ...] = METHODS, budgets: tuple[float, ...] = BUDGETS) -> Table:
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


def recency(methods: tuple[str, ...] = METHODS, budgets: tuple[float, ...] = BUDGETS) -> Table:
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


def overlap(methods: tuple[str, ...] = METHODS, budgets: tuple[float, ...] = BUDGETS) -> Table:
    prompt = Prompt()
    table = Table("overlap", (*HEAD, "budget", "method_a", "method_b", "jaccard"))
    for budget in budgets:
        masks = {m: _kept(m, budget, prompt) for m in methods}
        for i, a in enumerate(methods):
            for b in methods[i:]:
                both, either = (masks[a] & masks[b]).sum(1), (masks[a] | masks[b]).sum(1)
                table.add(**WHO, budget=budget, method_a=a, method_b=b, jaccard=float((both / either).mean()))
    return table
