"""``ecokv evict``: simulated eviction on dumped caches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from ecokv_cli.cli import options as o
from ecokv_cli.cli.common import (
    FigureChoice,
    Findings,
    averaged,
    keep,
    layer_and_head,
    open_samples,
    require_free,
    show_failures,
)
from ecokv_cli.cli.console import Screen, guarded, table
from ecokv_cli.cli.machines import choose_engine, choose_share, show_shard
from ecokv_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ecokv_cli.cli.machines import Share
    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.runs import Run
    from ecokv_cli.engines.workers import Engine
    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.studies.tables import Table

EXAMPLES = """Examples:

ecokv evict --budget 64                        all methods on the latest run

ecokv evict --budget 64,128,256 --window 32    matched windows

ecokv evict --budget 64 --budget-ratio 0.1,0.25    64 tokens; a tenth and a quarter of each prompt

ecokv evict -b 64 --method snapkv --method "snapkv+ecokv[window=4,alpha=0.5]"
"""


# Beside the names of methods there is room for three intervals.
_SETS = (("mass", "output_error", "output_cosine"), ("kept", "oracle_overlap"))
SUMMARY = ("kept", "mass", "output_error", "output_cosine", "oracle_overlap")
"""Measures that are summarised over samples."""


def evict_step(
    screen: Screen,
    run: Run,
    samples: Sequence[Dump],
    figures: FigureChoice,
    *,
    layers: str,
    heads: str,
    methods: Sequence[str],
    budgets: Sequence[Budget],
    window: int | None,
    head_scores: Path | None,
    focus: str | None,
    seed: int,
    keep_going: bool,
    force: bool,
    engine: Engine | None = None,
    share: Share | None = None,
) -> dict[str, Any]:
    """Simulated eviction on samples: tables, figures, report."""
    from ecokv_cli.dump.headscores import read_head_scores
    from ecokv_cli.dump.layers import choose_layers, left_out
    from ecokv_cli.dump.runs import parse_range
    from ecokv_cli.engines.workers import LocalEngine, Tell, nothing
    from ecokv_cli.eviction.spec import DEFAULT_METHODS, parse_methods
    from ecokv_cli.figures.gallery import draw_eviction, undrawn
    from ecokv_cli.figures.reduction import reduce_eviction
    from ecokv_cli.studies.evict import EvictSettings
    from ecokv_cli.studies.many import Handling, evict_many, keep_masks
    from ecokv_cli.studies.statistics import over_samples
    from ecokv_cli.studies.wide import Summary

    require_free(run, "eviction", force=force)
    chosen = choose_layers(layers, samples[0])
    chosen_heads = parse_range(heads, samples[0].manifest.model.kv_heads, "heads")
    middle = (chosen[len(chosen) // 2], chosen_heads[0])
    place = layer_and_head("--focus", focus, samples[0]) if focus else middle
    if place[0] not in chosen or place[1] not in chosen_heads:
        raise UsageError(f"--focus {focus}: not among --layers {layers} and --heads {heads}")
    specs = methods or [f"random[seed={seed}]" if name == "random" else name for name in DEFAULT_METHODS]
    settings = EvictSettings(
        tuple(parse_methods(specs, window)),
        tuple(budgets),
        tuple(chosen),
        tuple(chosen_heads),
        place,
        read_head_scores(head_scores).for_model(samples[0].manifest.model, str(head_scores)) if head_scores else None,
    )
    settings.require_fits(samples, every=not keep_going)
    windows = {method.keep_window for method in settings.methods if not method.keeps_all}
    described = {
        "methods": ", ".join(m.name for m in settings.methods), "budgets": ", ".join(map(str, settings.budgets)),
        "layers": layers, "heads": heads,
        "window": window or f"each method's own ({', '.join(map(str, sorted(windows)))})",
        "head scores": str(head_scores) if head_scores else None,
        "focus": f"{place[0]}:{place[1]}", "seed": seed, "width": figures.width,
    }  # fmt: skip
    parts = run.folder / ".eviction-parts"
    with screen.progress() as progress:
        identity = {**described, "table": None if settings.head_scores is None else settings.head_scores.tolist()}
        with (engine or LocalEngine()).workers(nothing, Tell(note=screen.note)) as workers:
            how = Handling(
                parts, identity, keep_going, lambda done, total: progress("samples", done, total), workers,
                share.shard if share else None,
            )  # fmt: skip
            found = evict_many(samples, settings, how)
        if share:
            share.leave(run.folder, found.samples, {}, found.failed)
            return {"done": len(found.results), "failed": found.failed}
        progress("figures", 0, 1)
        left = [dump for dump in samples if dump.manifest.sample in found.parts]
        longest = max(len(dump.manifest.tokens.ids) for dump in left)
        result, per_method = reduce_eviction(found.results, SUMMARY, longest)
        drawings = draw_eviction(result, left, figures.width, figures.names["eviction"])
        summed = over_samples(per_method, ("model", "budget", "method", "window"), SUMMARY, seed)
        overview = per_method if len(found.results) == 1 else summed
        over_all = Summary(summed, _SETS, ("model", "budget"))
        findings = Findings(
            "eviction", found.results, overview, described, drawings, summaries=[over_all], failed=found.failed
        )
        summary = keep(
            run, samples, findings, figures, force=force, finished=parts,
            extra=lambda folder: keep_masks(found, folder),
        )  # fmt: skip
    if found.reused:
        screen.note(f"{found.reused} of {len(samples)} samples were done already")
    if window is None and len(windows) > 1:
        screen.note("methods have windows of their own, so rows are not matched; --window W sets all alike")
    notes = dict.fromkeys(str(row["note"]) for row in result.ledger if row["note"])
    absent = undrawn("eviction", figures.names["eviction"], drawings)
    for note in filter(None, [left_out(samples[0]), *notes, *_rounded(result.ledger), *absent]):
        screen.note(note)
    _show(screen, per_method, summed)
    return {**summary, "failed": found.failed}


def _show(screen: Screen, per_method: Table, summed: Table) -> None:
    """The table of methods."""
    titles = ("budget", "method", "window", "kept", "mass", "error", "cosine", "overlap")
    screen.show(table(*averaged(per_method, summed, ("budget", "method", "window"), SUMMARY, titles), keys=2))


def _rounded(ledger: Table) -> list[str]:
    """One line for each method and budget whose published rounding spends another total than the nominal one."""
    from ecokv_cli.eviction.budget import in_short

    kept, exact = (ledger.stats(("method", "budget"), column) for column in ("kept", "exact"))
    sums = {key: (kept[key].total, stats.total) for key, stats in exact.items()}
    return [
        f"{method} at {in_short(cast('Budget', budget))}: its rounding keeps {spent:,.0f} tokens instead of "
        f"{total:,.0f} ({spent / total - 1:+.1%})"
        for (method, budget), (spent, total) in sums.items()
        if spent != total
    ]


def choose_budgets(budgets: Sequence[str] | None, ratios: Sequence[str] | None) -> list[Budget]:
    """What ``--budget`` and ``--budget-ratio`` ask for, each once, in order; 64 tokens if neither is given."""
    if not budgets and not ratios:
        return [64]
    return [
        *parse_budgets(budgets or (), "; a share of the prompt is --budget-ratio 0.25"),
        *_parse_ratios(ratios or ()),
    ]


def parse_budgets(texts: Sequence[str], otherwise: str = "") -> list[int]:
    """Budgets in tokens from repeated options and comma lists, each once, in order.

    Raises
    ------
    UsageError
        If one is no whole number of tokens; it ends with `otherwise`, another way to say it.
    """
    budgets: list[int] = []
    for part in _parts(texts):
        if not part.isascii() or not part.isdigit() or int(part) < 1:
            raise UsageError(
                f"--budget '{part}': a budget is a whole number of tokens per KV head, 1 or more{otherwise}"
            )
        budgets.append(int(part))
    return list(dict.fromkeys(budgets))


def _parse_ratios(texts: Sequence[str]) -> list[float]:
    ratios: list[float] = []
    for part in _parts(texts):
        try:
            ratio = float(part)
        except ValueError:
            ratio = math.nan
        if not 0 < ratio < 1:
            raise UsageError(
                f"--budget-ratio '{part}': a share of the prompt is a number between 0 and 1, such as 0.25; "
                f"a number of tokens is --budget 64"
            )
        ratios.append(ratio)
    return list(dict.fromkeys(ratios))


def _parts(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",")]


@guarded
def command(
    paths: o.RunPaths = None,
    budget: o.Budgets = None,
    budget_ratio: o.BudgetRatios = None,
    method: o.Methods = None,
    window: o.Window = None,
    head_scores: o.HeadScoresFile = None,
    layers: o.Layers = "all",
    heads: o.Heads = "all",
    limit: o.Limit = None,
    focus: o.Focus = None,
    seed: o.Seed = 0,
    keep_going: o.GoOn = False,
    engine: o.EngineName = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    num_cpus_per_worker: o.WorkerCpus = None,
    shard: o.ShardOf = None,
    figure_names: o.Figures = "all",
    figure_format: o.Format = "pdf,png",
    width: o.Width = "double",
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Evict with every method at every budget and compare with the full cache on held-out queries.

    A budget is per KV head and layer, the protected window included: tokens, or a share of each sample's own prompt.

    Works on a run of `ecokv dump`, without the model; tables, figures and report.html go into the run folder.
    """
    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    budgets = choose_budgets(budget, budget_ratio)
    machines = choose_engine(engine, address, workers, num_cpus_per_worker)
    run, samples = open_samples(paths, limit, screen.note)
    figures = FigureChoice.parse(figure_format, width, figure_names, ("eviction",))
    options: dict[str, Any] = {
        "layers": layers, "heads": heads, "methods": method or [], "budgets": budgets, "window": window,
        "head_scores": head_scores, "focus": focus, "seed": seed,
    }  # fmt: skip
    share = choose_share(shard, paths, "eviction", **options, limit=limit, figures=[figure_format, width, figure_names])
    summary = evict_step(
        screen, run, samples, figures, **options, keep_going=keep_going, force=force, engine=machines, share=share,
    )  # fmt: skip
    if share:
        show_shard(screen, run.folder, share, summary["done"], summary["failed"])
        return
    screen.finish(summary, f"report: {summary['report']}")
    show_failures(screen, summary["failed"], len(samples))
