"""``ecokv analyze``: the geometry of dumped keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

    from ecokv_cli.cli.machines import Share
    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.runs import Run
    from ecokv_cli.engines.workers import Engine

EXAMPLES = """Examples:

ecokv analyze                                  all layers of the latest run

ecokv analyze ecokv-runs/my-run --layers 0-3,-1 --pca 0:0 --pca 3:1

ecokv analyze runs/a runs/b --keep-going           samples of several runs, with intervals over samples

ecokv analyze --figures lambda_by_layer,pca_scatter --width single

ecokv analyze --booster "snapkv+ecokv[redundancy_map=exp]" --format pdf,svg --width single
"""


SUMMARY = (
    "cos_mean", "dist_mean", "dist_per_norm", "effective_rank", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std",
    "spearman",
)  # fmt: skip
"""Measures that are summarised over samples."""


def analyze_step(
    screen: Screen,
    run: Run,
    samples: Sequence[Dump],
    figures: FigureChoice,
    *,
    layers: str,
    heads: str,
    booster: str,
    window: int | None,
    pairs: int,
    seed: int,
    pca: Sequence[str],
    keep_going: bool,
    force: bool,
    engine: Engine | None = None,
    share: Share | None = None,
) -> dict[str, Any]:
    """Geometry of samples: tables, figures, report."""
    from ecokv_cli.dump.layers import choose_layers, left_out
    from ecokv_cli.dump.runs import parse_range
    from ecokv_cli.engines.workers import LocalEngine, Tell, nothing
    from ecokv_cli.eviction.spec import parse_single
    from ecokv_cli.figures.gallery import draw_analysis, undrawn
    from ecokv_cli.figures.overview import summaries
    from ecokv_cli.figures.reduction import reduce_analysis
    from ecokv_cli.studies.analyze import AnalyzeSettings
    from ecokv_cli.studies.many import Handling, analyze_many

    require_free(run, "analysis", force=force)
    chosen = choose_layers(layers, samples[0])
    chosen_heads = parse_range(heads, samples[0].manifest.model.kv_heads, "heads")
    planes = [layer_and_head("--pca", text, samples[0]) for text in pca] or _spread(chosen, chosen_heads[0])
    outside = [f"{layer}:{head}" for layer, head in planes if layer not in chosen or head not in chosen_heads]
    if outside:
        raise UsageError(f"--pca {outside[0]}: not among --layers {layers} and --heads {heads}")
    method = parse_single(booster)
    method = method if window is None else method.with_window(window)
    settings = AnalyzeSettings(tuple(chosen), tuple(chosen_heads), method, pairs, seed, tuple(planes))
    described = {
        "layers": layers, "heads": heads,
        "booster": method.name, "window": method.keep_window, "pairs": pairs, "seed": seed,
        "pca": ", ".join(f"{layer}:{head}" for layer, head in planes), "width": figures.width,
    }  # fmt: skip
    parts = run.folder / ".analysis-parts"
    with screen.progress() as progress:
        with (engine or LocalEngine()).workers(nothing, Tell(note=screen.note)) as workers:
            how = Handling(
                parts, described, keep_going, lambda done, total: progress("samples", done, total), workers,
                share.shard if share else None,
            )  # fmt: skip
            found = analyze_many(samples, settings, how)
        if share:
            share.leave(run.folder, found.samples, {}, found.failed)
            return {"done": len(found.results), "failed": found.failed}
        progress("figures", 0, 1)
        result, per_layer = reduce_analysis(found.results, SUMMARY)
        drawings = draw_analysis(result, figures.width, figures.names["analysis"])
        summed = summaries(result, per_layer, SUMMARY, seed)
        overview = per_layer if len(found.results) == 1 else summed[0].table
        findings = Findings(
            "analysis", found.results, overview, described, drawings, summaries=summed, failed=found.failed
        )
        summary = keep(run, samples, findings, figures, force=force, finished=parts)
    if found.reused:
        screen.note(f"{found.reused} of {len(samples)} samples were analysed already")
    for line in [left_out(samples[0]), *undrawn("analysis", figures.names["analysis"], drawings)]:
        if line:
            screen.note(line)
    shown = ("layer", "cos_mean", "dist_mean", "effective_rank", "r_euc", "lambda_ecokv", "lambda_mixkv", "spearman")
    titles = ("layer", "cos", "dist", "eff. rank", "r_euc", "λ ecokv", "λ mixkv", "ρ imp-div")
    screen.show(table(*averaged(per_layer, summed[0].table, ("layer",), shown[1:], titles)))
    return {**summary, "failed": found.failed}


def _spread(layers: Sequence[int], head: int) -> list[tuple[int, int]]:
    """First, middle and last of the layers, with one head."""
    return [(layer, head) for layer in dict.fromkeys((layers[0], layers[len(layers) // 2], layers[-1]))]


@guarded
def command(
    paths: o.RunPaths = None,
    layers: o.Layers = "all",
    heads: o.Heads = "all",
    limit: o.Limit = None,
    booster: o.Booster = "snapkv+ecokv",
    window: o.Window = None,
    pairs: o.Pairs = 20_000,
    pca: o.Pca = None,
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
    """Geometry of dumped keys and values: cosine and Euclidean statistics, PCA, redundancy, roles, regions, sinks.

    Works on a run of `ecokv dump`, without the model; tables, figures and report.html go into the run folder.
    """
    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    machines = choose_engine(engine, address, workers, num_cpus_per_worker)
    run, samples = open_samples(paths, limit, screen.note)
    figures = FigureChoice.parse(figure_format, width, figure_names, ("analysis",))
    options: dict[str, Any] = {
        "layers": layers, "heads": heads, "booster": booster, "window": window, "pairs": pairs, "seed": seed,
        "pca": pca or [],
    }  # fmt: skip
    share = choose_share(shard, paths, "analysis", **options, limit=limit, figures=[figure_format, width, figure_names])
    summary = analyze_step(
        screen, run, samples, figures, **options, keep_going=keep_going, force=force, engine=machines, share=share,
    )  # fmt: skip
    if share:
        show_shard(screen, run.folder, share, summary["done"], summary["failed"])
        return
    screen.finish(summary, f"report: {summary['report']}")
    show_failures(screen, summary["failed"], len(samples))
