"""``ecokv analyze``: the geometry of dumped keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ecokv_cli.cli import options as o
from ecokv_cli.cli.common import FigureChoice, Findings, keep, layer_and_head, require_free
from ecokv_cli.cli.console import Screen, guarded, table
from ecokv_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ecokv_cli.dump.runs import Run

EXAMPLES = """Examples:

ecokv analyze                                  all layers of the latest run

ecokv analyze ecokv-runs/my-run --layers 0-3,-1 --pca 0:0 --pca 3:1

ecokv analyze --booster "snapkv+ecokv[redundancy_map=exp]" --format pdf,svg --width single
"""


def analyze_step(
    screen: Screen,
    run: Run,
    figures: FigureChoice,
    *,
    layers: str,
    heads: str,
    limit: int | None,
    booster: str,
    window: int | None,
    pairs: int,
    seed: int,
    pca: Sequence[str],
    force: bool,
) -> dict[str, Any]:
    """Geometry of a run: tables, figures, report."""
    from ecokv_cli.dump.runs import parse_range
    from ecokv_cli.eviction.spec import parse_methods
    from ecokv_cli.figures.gallery import draw_analysis
    from ecokv_cli.studies.analyze import AnalyzeSettings, analyze

    require_free(run, "analysis", force=force)
    samples = run.samples()[:limit]
    shape = samples[0].manifest.model
    chosen = parse_range(layers, shape.layers, "layers")
    chosen_heads = parse_range(heads, shape.kv_heads, "heads")
    planes = [layer_and_head("--pca", text, samples[0]) for text in pca] or _spread(chosen, chosen_heads[0])
    outside = [f"{layer}:{head}" for layer, head in planes if layer not in chosen or head not in chosen_heads]
    if outside:
        raise UsageError(f"--pca {outside[0]}: not among --layers {layers} and --heads {heads}")
    method = parse_methods([booster], window)[0]
    settings = AnalyzeSettings(tuple(chosen), tuple(chosen_heads), method, pairs, seed, tuple(planes))
    with screen.progress() as progress:
        result = analyze(samples, settings, lambda done, total: progress("layers", done, total))
        described = {
            "layers": layers, "heads": heads,
            "booster": method.name, "window": method.keep_window, "pairs": pairs, "seed": seed,
            "pca": ", ".join(f"{layer}:{head}" for layer, head in planes), "width": figures.width,
        }  # fmt: skip
        progress("figures", 0, 1)
        drawings = draw_analysis(result, figures.width)
        findings = Findings("analysis", result.tables, result.layers, described, drawings)
        summary = keep(run, samples, findings, figures, force=force)
    shown = ("layer", "cos_mean", "dist_mean", "effective_rank", "r_euc", "lambda_ecokv", "lambda_mixkv", "spearman")
    titles = ("layer", "cos", "dist", "eff. rank", "r_euc", "λ ecokv", "λ mixkv", "ρ imp-div")
    for name in result.layers.distinct("sample"):
        rows = [[row[c] for c in shown] for row in result.layers.where(sample=name)]
        screen.show(table(f"{name}: means over KV heads", titles, rows))
    return summary


def _spread(layers: Sequence[int], head: int) -> list[tuple[int, int]]:
    """First, middle and last of the layers, with one head."""
    return [(layer, head) for layer in dict.fromkeys((layers[0], layers[len(layers) // 2], layers[-1]))]


@guarded
def command(
    path: o.RunPath = None,
    layers: o.Layers = "all",
    heads: o.Heads = "all",
    limit: o.Limit = None,
    booster: o.Booster = "snapkv+ecokv",
    window: o.Window = None,
    pairs: o.Pairs = 20_000,
    pca: o.Pca = None,
    seed: o.Seed = 0,
    figure_format: o.Format = "pdf,png",
    width: o.Width = "double",
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Geometry of dumped keys: cosine and Euclidean statistics, PCA, redundancy, importance against diversity.

    Works on a run of `ecokv dump`, without the model; tables, figures and report.html go into the run folder.
    """
    from ecokv_cli.dump.runs import find_run

    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    figures = FigureChoice.parse(figure_format, width)
    summary = analyze_step(
        screen, find_run(path), figures, layers=layers, heads=heads, limit=limit,
        booster=booster, window=window, pairs=pairs, seed=seed,
        pca=pca or (), force=force,
    )  # fmt: skip
    screen.finish(summary, f"report: {summary['report']}")
