"""``ecokv route``: a method for each layer, chosen on some dumps and judged on others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ecokv_cli.cli import options as o
from ecokv_cli.cli.common import FigureChoice, Findings, keep, require_free
from ecokv_cli.cli.console import Screen, guarded, table
from ecokv_cli.cli.evict import choose_budgets
from ecokv_cli.errors import UsageError

EXAMPLES = """Examples:

ecokv route runs/pages --calibrate 10 --budget 64        the first 10 samples choose, the rest judge

ecokv route runs/train --evaluate runs/test -b 64,128 --method snapkv --method keydiff

ecokv route runs/pages --budget-ratio 0.1,0.25           a tenth and a quarter of each prompt

ecokv evict --method "route[0-5=snapkv,6-=keydiff]"      use a route
"""

Evaluate = Annotated[
    Path | None,
    typer.Option("--evaluate", help="Run whose samples judge; all of the first run's then choose.", show_default=False),
]
Calibrate = Annotated[
    int | None,
    typer.Option(
        help="How many samples of the run choose; the others judge.  [default: half]", min=1, show_default=False
    ),
]
Candidates = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="Candidate; repeat.  [default: snapkv, keydiff, manifoldkv, knorm, vnorm, snapkv+mixkv, snapkv+ecokv]",
        show_default=False,
    ),
]
Assignments = Annotated[int, typer.Option(help="Random routes to compare with.", min=1)]


@guarded
def command(
    path: o.RunPath = None,
    evaluate: Evaluate = None,
    calibrate: Calibrate = None,
    budget: o.Budgets = None,
    budget_ratio: o.BudgetRatios = None,
    method: Candidates = None,
    window: o.Window = None,
    assignments: Assignments = 100,
    seed: o.Seed = 0,
    figure_format: o.Format = "pdf,png",
    width: o.Width = "double",
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Choose the best method for each layer on some samples and judge that route on others.

    A budget is per KV head and layer, the protected window included: tokens, or a share of each sample's own prompt. A
    route is made for each.

    No sample is on both sides: the same image, by its file or by its pixels, with the same prompt is refused whatever
    the runs are called. The same image with another prompt is another sample.

    It is compared with each method used everywhere, and with random routes that use each method as often. Each layer
    is judged with the full cache upstream: what eviction in one layer does to the next is not seen here.
    """
    from ecokv_cli.dump.layers import choose_layers, left_out
    from ecokv_cli.dump.runs import find_run
    from ecokv_cli.eviction.spec import parse_single
    from ecokv_cli.figures.route import route_profile
    from ecokv_cli.studies.route import ROUTE_METHODS, RouteSettings, route_study

    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    figures = FigureChoice.parse(figure_format, width)
    if evaluate and calibrate:
        raise UsageError("--calibrate splits one run, --evaluate names another; give one of them")
    run = find_run(path)
    require_free(run, "routing", force=force)
    samples = run.handles()
    choose_layers("all", samples[0])
    split = len(samples) if evaluate else calibrate or (len(samples) + 1) // 2
    others = find_run(evaluate).handles() if evaluate else samples[split:]
    methods = [parse_single(spec) for spec in method or ROUTE_METHODS]
    if window is not None:
        methods = [m.with_window(window) for m in methods]
    unique = tuple({m.name: m for m in methods}.values())
    settings = RouteSettings(unique, tuple(choose_budgets(budget, budget_ratio)), assignments, seed)
    with screen.progress() as progress:
        result = route_study(samples[:split], others, settings, lambda done, total: progress("samples", done, total))
        described = {
            "methods": ", ".join(m.name for m in unique), "budgets": ", ".join(map(str, settings.budgets)),
            "window": window or "each method's own", "calibration": len(samples[:split]), "evaluation": len(others),
            "random routes": assignments, "seed": seed, "width": figures.width,
        }  # fmt: skip
        drawings = [route_profile(result.profile.where(budget=b), width) for b in settings.budgets]
        findings = Findings("routing", [result], result.routes, described, drawings, [result.routes])
        summary = keep(run, [*samples[:split], *others], findings, figures, force=force)
    if left_out(samples[0]):
        screen.note(left_out(samples[0]))
    if window is None and len({m.keep_window for m in unique}) > 1:
        screen.note("methods have windows of their own, so rows are not matched; --window W sets all alike")
    for budget_value, route in result.chosen.items():
        screen.note(f"budget {budget_value}: {route.name}")
    columns = ("budget", "kind", "route", "error", "samples", "rank", "random_routes")
    rows = [[row[c] for c in columns] for row in result.routes]
    screen.show(table("mean output error on the evaluation samples", columns, rows, keys=3))
    screen.finish(summary, f"report: {summary['report']}")
