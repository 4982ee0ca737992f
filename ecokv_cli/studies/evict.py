"""What-if eviction on a dump: every method at every budget, judged by held-out queries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations, product
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from ecokv_cli.errors import MethodError, UsageError
from ecokv_cli.eviction.budget import require_budget, tokens_of
from ecokv_cli.eviction.fidelity import HeldOut, jaccard
from ecokv_cli.eviction.route import Route
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.studies.plane import PLANE, plane_rows
from ecokv_cli.studies.selecting import require_budgets, require_layers
from ecokv_cli.studies.tables import Table, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.eviction.layer import Layer
    from ecokv_cli.eviction.method import Method
    from ecokv_cli.eviction.selection import Selection

AGE_BINS = 24
"""Bins of the recency histogram."""


@dataclass(frozen=True)
class EvictSettings:
    """What to simulate.

    Attributes
    ----------
    methods, budgets
        Every method is run at every budget (per KV head, window included): an int of tokens, or a float 0 < r < 1, the
        share of each sample's own prompt.
    layers, heads
        Layer and KV head numbers.
    focus
        (layer, KV head) whose kept positions are also reported alone.
    head_scores
        ``[L, H_q]`` visual-head scores of this model, for methods that need them.
    """

    methods: tuple[Method | Route, ...]
    budgets: tuple[Budget, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    focus: tuple[int, int]
    head_scores: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("methods", "budgets"):
            if not getattr(self, name):
                raise UsageError(f"no {name} given; one or more are needed")
        for budget in self.budgets:
            require_budget(budget)

    def require_fits(self, samples: Sequence[Dump], *, every: bool) -> None:
        """Refuse what goes with none of the samples, or not with `every` one, before any work.

        Raises
        ------
        MethodError
            For a budget in tokens that can hold neither what a method protects nor any of the prompts, or a route that
            does not fit the model's layers. With `every`, for what `require_fit` refuses.
        """
        require_layers(self.methods, samples[0].manifest.model.layers)
        for method, budget in product(self.methods, self.budgets):
            try:
                method.require_budget(budget)
            except MethodError:
                if all(len(dump.manifest.tokens.ids) > budget for dump in samples):
                    raise
        for dump in samples if every else ():
            self.require_fit(dump)

    def require_fit(self, dump: Dump) -> None:
        """Refuse a sample of which a budget can hold neither the whole prompt nor what a method protects.

        Raises
        ------
        MethodError
            Naming the sample.
        """
        require_budgets(dump.manifest.sample, len(dump.manifest.tokens.ids), product(self.methods, self.budgets))


@dataclass(frozen=True)
class Eviction:
    """Result tables, and the kept masks ``{sample: {method@budget: [L, H, N] bool}}``."""

    fidelity: Table
    ledger: Table
    positions: Table
    roles: Table
    recency: Table
    overlap: Table
    plane: Table
    masks: dict[str, dict[str, torch.Tensor]]

    @property
    def methods(self) -> Table:
        """One row per sample, method and budget: means over layers and KV heads."""
        columns = ("kept", "mass", "output_error", "output_cosine", "oracle_overlap")
        where = ("model", "sample", "budget", "method", "window")
        means = {column: self.fidelity.aggregate(where, column, fmean) for column in columns}
        table = Table("methods", (*where, *columns))
        for key in means["kept"]:
            table.add(**dict(zip(where, key, strict=True)), **{column: means[column][key] for column in columns})
        return table

    @property
    def tables(self) -> list[Table]:
        """All tables."""
        return [
            self.methods,
            self.fidelity,
            self.ledger,
            self.positions,
            self.roles,
            self.recency,
            self.overlap,
            self.plane,
        ]


@dataclass
class _Tally:
    """Sums over layers and heads of one sample, per method and budget."""

    kept: dict[tuple[str, Budget], torch.Tensor] = field(default_factory=dict)
    focus: dict[tuple[str, Budget], torch.Tensor] = field(default_factory=dict)
    masks: dict[tuple[str, Budget], list[torch.Tensor]] = field(default_factory=dict)
    overlaps: dict[tuple[Budget, str, str], list[float]] = field(default_factory=dict)
    heads: int = 0


def evict(
    samples: Sequence[Dump], settings: EvictSettings, progress: Callable[[int, int], None] = lambda *_: None
) -> Eviction:
    """Select with every method at every budget and compare with the full cache.

    Parameters
    ----------
    samples
        Dumps with decode queries.
    settings
        Methods, budgets, layers.
    progress
        Called with layers done and layers in all.

    Returns
    -------
    Eviction
        Long-format tables. Budgets are per KV head and layer, the window included; `budget` is what was asked, and the
        ledger's `nominal` what it comes to in tokens. One of N or more keeps everything and says so in the ledger's
        note.

    Raises
    ------
    DumpError
        If a sample has no decode queries.
    MethodError
        If a share of a sample's prompt cannot hold what a method protects.
    NonFiniteError
        If a tensor or a score is NaN or infinite.
    """
    who = ("model", "sample")
    setting = (*who, "method", "budget", "window")
    result = Eviction(
        Table(
            "fidelity",
            (*setting, "layer", "kv_head", "kept", "mass", "output_error", "output_cosine", "oracle_overlap"),
        ),
        Table(
            "ledger",
            (
                *setting, "layer", "kv_head", "tokens", "nominal", "window_kept", "free_kept", "kept", "state", "exact",
                "note",
            ),
        ),
        Table(
            "positions",
            (*who, "method", "budget", "layer", "kv_head", "position", "role", "image", "row", "col", "kept"),
        ),
        Table("roles", (*who, "method", "budget", "role", "tokens", "kept_tokens", "share_of_kept", "share_of_role")),
        Table("recency", (*who, "method", "budget", "age_low", "age_high", "kept")),
        Table("overlap", (*who, "budget", "method_a", "method_b", "jaccard")),
        Table("plane", PLANE),
        {},
    )  # fmt: skip
    done, total = 0, len(samples) * len(settings.layers)
    for dump in samples:
        settings.require_fit(dump)
        tally = _Tally()
        for layer in dump.layers(settings.layers):
            _evict_layer(result, tally, dump, replace(layer, head_scores=settings.head_scores), settings)
            done += 1
            progress(done, total)
        _summarise(result, tally, dump, settings)
    return result


@torch.inference_mode()
def _evict_layer(result: Eviction, tally: _Tally, dump: Dump, layer: Layer, settings: EvictSettings) -> None:
    held_out = HeldOut(layer)
    if layer.index == settings.focus[0]:
        for row in plane_rows(dump, layer, settings.focus[1]):
            result.plane.add(**row)
    tally.heads += len(settings.heads)
    oracle = parse_method("oracle")
    best = {budget: oracle.select(layer, budget) for budget in settings.budgets}
    sizes = {budget: tokens_of(budget, layer.tokens) for budget in settings.budgets}
    chosen: dict[tuple[str, Budget], Selection] = {}
    for method in settings.methods:
        scores = method.shared_scores(layer, settings.budgets)
        for budget in settings.budgets:
            selection = method.select(layer, budget, scores)
            chosen[method.name, budget] = selection
            _record(tally, selection, (method.name, budget), layer, settings)
            fidelity = held_out.judge(selection)
            shared = jaccard(selection, best[budget])
            for head in settings.heads:
                kept = int(selection.counts[head])
                where: dict[str, Value] = {
                    "model": dump.manifest.model.id,
                    "sample": dump.manifest.sample,
                    "method": method.name,
                    "budget": budget,
                    "window": min(method.keep_window, layer.tokens),
                    "layer": layer.index,
                    "kv_head": head,
                    "kept": kept,
                }
                result.fidelity.add(
                    **where,
                    mass=float(fidelity.mass[head]),
                    output_error=float(fidelity.error[head]),
                    output_cosine=float(fidelity.cosine[head]),
                    oracle_overlap=float(shared[head]),
                )
                result.ledger.add(
                    **where,
                    tokens=layer.tokens,
                    nominal=sizes[budget],
                    window_kept=selection.window,
                    free_kept=kept - selection.window,
                    state=selection.state,
                    exact=kept if selection.exact is None else int(selection.exact[head]),
                    note=selection.note,
                )
    for (a, budget), (b, other) in combinations(chosen, 2):
        if budget == other:
            pair = jaccard(chosen[a, budget], chosen[b, budget])[list(settings.heads)].tolist()
            tally.overlaps.setdefault((budget, a, b), []).extend(pair)


def _record(
    tally: _Tally, selection: Selection, key: tuple[str, Budget], layer: Layer, settings: EvictSettings
) -> None:
    kept = selection.mask[list(settings.heads)].sum(0, dtype=torch.float64).cpu()
    tally.kept[key] = tally.kept.get(key, torch.zeros_like(kept)) + kept
    tally.masks.setdefault(key, []).append(selection.mask.cpu())
    if layer.index == settings.focus[0]:
        tally.focus[key] = selection.mask[settings.focus[1]].double().cpu()


def _summarise(result: Eviction, tally: _Tally, dump: Dump, settings: EvictSettings) -> None:
    """Everything that is a mean over layers and heads."""
    sample = dump.manifest.sample
    who: dict[str, Value] = {"model": dump.manifest.model.id, "sample": sample}
    result.masks[sample] = {f"{m}@{b}": torch.stack(masks) for (m, b), masks in tally.masks.items()}
    for key, kept in tally.kept.items():
        where = {**who, "method": key[0], "budget": key[1]}
        share = kept / tally.heads
        _add_positions(result.positions, {**where, "layer": "all", "kv_head": "all"}, dump, share.tolist())
        if key in tally.focus:
            one = {**where, "layer": settings.focus[0], "kv_head": settings.focus[1]}
            _add_positions(result.positions, one, dump, tally.focus[key].tolist())
        _add_roles(result.roles, where, dump.manifest.tokens.roles, share)
        _add_recency(result.recency, where, share)
    for (budget, a, b), values in tally.overlaps.items():
        result.overlap.add(**who, budget=budget, method_a=a, method_b=b, jaccard=sum(values) / len(values))


def _add_positions(table: Table, where: dict[str, Value], dump: Dump, share: Sequence[float]) -> None:
    tokens = dump.manifest.tokens
    table.extend(
        where, position=range(len(share)), role=tokens.roles, image=tokens.image, row=tokens.row, col=tokens.col,
        kept=share,
    )  # fmt: skip


def _add_roles(table: Table, where: dict[str, Value], roles: Sequence[str], share: torch.Tensor) -> None:
    total = float(share.sum())
    for role in dict.fromkeys(roles):
        mine = torch.tensor([r == role for r in roles])
        tokens, kept = int(mine.sum()), float(share[mine].sum())
        table.add(
            **where, role=role, tokens=tokens, kept_tokens=kept, share_of_kept=kept / total, share_of_role=kept / tokens
        )


def _add_recency(table: Table, where: dict[str, Value], share: torch.Tensor) -> None:
    """Kept share by distance from the prompt's end, in bins of equal width."""
    by_age = share.flip(0)
    width = -(-len(by_age) // AGE_BINS)
    for low in range(0, len(by_age), width):
        part = by_age[low : low + width]
        table.add(**where, age_low=low, age_high=low + len(part) - 1, kept=float(part.mean()))
