"""``ecokv compare``: two runs side by side, with differences and intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecokv_cli.cli import options as o
from ecokv_cli.cli.analyze import SUMMARY as LAYER_MEASURES
from ecokv_cli.cli.common import FigureChoice
from ecokv_cli.cli.console import Screen, command_line, guarded, table
from ecokv_cli.cli.evict import SUMMARY as METHOD_MEASURES
from ecokv_cli.errors import DumpError, OutputError

if TYPE_CHECKING:
    from ecokv_cli.dump.runs import Run
    from ecokv_cli.figures.drawing import Drawing
    from ecokv_cli.studies.results import Results
    from ecokv_cli.studies.tables import Table

EXAMPLES = """Examples:

ecokv compare runs/qwen runs/llava                  layers and methods of two models

ecokv compare runs/float32 runs/bfloat16 -o diff    the same samples: differences are taken per sample
"""

First = Annotated[Path, typer.Argument(help="A run with results of analyze or evict.", show_default=False)]
Second = Annotated[Path, typer.Argument(help="Another one; differences are second minus first.", show_default=False)]
Folder = Annotated[Path, typer.Option("--output", "-o", help="Folder of the comparison.", rich_help_panel=o.OUTPUT)]


@guarded
def command(
    first: First,
    second: Second,
    output: Folder = Path("comparison"),
    seed: o.Seed = 0,
    figure_format: o.Format = "pdf,png",
    width: o.Width = "double",
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Compare the results of two runs: another model, prompt, precision or set of layers.

    Means over the samples of each run and their difference with a 95 % bootstrap interval; taken per sample where
    both runs have the same samples.
    """
    from ecokv_cli.dump.runs import find_run
    from ecokv_cli.dump.versions import versions
    from ecokv_cli.dump.writer import fresh_folder
    from ecokv_cli.figures.compare import compare_layers, compare_methods
    from ecokv_cli.figures.compare_report import write_compare_report
    from ecokv_cli.figures.gallery import save_drawings
    from ecokv_cli.studies.compare import compare_tables
    from ecokv_cli.studies.results import write_results
    from ecokv_cli.studies.sides import shared_samples, side_by_side
    from ecokv_cli.studies.typeset import write_typeset

    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    figures = FigureChoice.parse(figure_format, width)
    runs = find_run(first), find_run(second)
    require_replaceable(output, force=force)
    labels = _labels(*runs)
    found: list[Table] = []
    made: list[Drawing | None] = []
    both = {"layers": _both(runs, "analysis"), "methods": _both(runs, "eviction")}
    pairs = {name: results for name, results in both.items() if results}
    if not pairs:
        raise DumpError(
            f"{runs[0].folder} and {runs[1].folder} share no results; run `ecokv analyze` or `ecokv evict` on both"
        )
    for name, by, measures, draw in (
        ("layers", ("layer",), LAYER_MEASURES, compare_layers),
        ("methods", ("budget", "method"), METHOD_MEASURES, compare_methods),
    ):
        if name in pairs:
            tables = pairs[name][0].table(name), pairs[name][1].table(name)
            found.append(compare_tables(*tables, by, measures, f"{name}_compared", seed))
            made.append(draw(found[-1], labels, figures.width))
    summary = {
        "command": command_line(), "versions": versions(), "first": labels[0], "second": labels[1],
        "settings": {"seed": seed, "width": figures.width},
        "runs": side_by_side(*zip(*pairs.values(), strict=True)),
        "samples": {f"{name}_compared": shared_samples(*results, name) for name, results in pairs.items()},
        "results": {each.name: each.rows for each in found},
    }  # fmt: skip
    with fresh_folder(output, force=force) as unfinished:
        write_results(unfinished, found, summary)
        for each in found:
            write_typeset(unfinished, each, each.columns)
        drawings = [drawing for drawing in made if drawing]
        save_drawings(unfinished / "figures", drawings, figures.formats)
        write_compare_report(unfinished, found, drawings, summary)
    for each in found:
        title = f"{each.name}: {labels[0]} and {labels[1]}"
        keys = [c for c in each.columns[: each.columns.index("measure")] if c != "layer"]
        if "layer" in each.columns:
            title += f", means over all layers; single layers in {each.name}.csv"
        columns = (*keys, "measure", "first", "second", "difference", "low", "high", "paired")
        rows = [[row[c] for c in columns] for row in each if row.get("layer") is None]
        screen.show(table(title, columns, rows, keys=len(keys) + 1))
    screen.finish(summary, f"report: {output / 'report.html'}")


def require_replaceable(output: Path, *, force: bool) -> None:
    """Refuse a place that is taken: always if it holds anything else than an earlier comparison.

    Raises
    ------
    OutputError
        If it is taken.
    """
    if not output.exists():
        return
    if output.is_file():
        raise OutputError(f"{output} is a file, so it is not replaced; name a folder with --output")
    held = sorted(path.relative_to(output).as_posix() for path in (*output.iterdir(), *output.glob("figures/*")))
    foreign = [name for name in held if not _ours(name)]
    if held and not any(name.endswith("_compared.csv") for name in held):
        foreign = held
    if foreign:
        raise OutputError(
            f"{output} holds {foreign[0]}, which no comparison made, so it is not replaced; "
            f"name another folder with --output"
        )
    if not force:
        raise OutputError(f"{output} exists; add --force to replace it, or name another folder with --output")


def _ours(name: str) -> bool:
    """Whether a comparison leaves something of this name."""
    made = name.startswith(("layers_compared", "methods_compared", "figures/compare_"))
    return made or name in {"figures", "figures/figures.json", "report.html", "summary.json"}


def _both(runs: tuple[Run, Run], kind: str) -> tuple[Results, Results] | None:
    """The results of one study of both runs, None if one of them lacks it."""
    from ecokv_cli.studies.results import read_results

    first, second = (read_results(run.folder / kind) for run in runs)
    return (first, second) if first and second else None


def _labels(first: Run, second: Run) -> tuple[str, str]:
    """Model ids where they differ, else folder names, else whole paths."""
    models = tuple(run.handles()[0].manifest.model.id for run in (first, second))
    folders = first.folder.resolve().name, second.folder.resolve().name
    for names in (models, folders):
        if names[0] != names[1]:
            return names[0], names[1]
    return str(first.folder), str(second.folder)
