"""What the subcommands share: figure settings, results on disk, and places given as LAYER:HEAD."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ecokv_cli.cli.console import command_line
from ecokv_cli.errors import EcokvError, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ecokv_cli.cli.console import Screen
    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.runs import Run
    from ecokv_cli.figures.drawing import Drawing
    from ecokv_cli.studies.results import Tabular
    from ecokv_cli.studies.tables import Table
    from ecokv_cli.studies.wide import Summary


@dataclass(frozen=True)
class FigureChoice:
    """How figures are written."""

    formats: tuple[str, ...]
    width: str
    names: dict[str, tuple[str, ...]]

    @classmethod
    def parse(cls, formats: str, width: str, figures: str = "all", kinds: Sequence[str] = ()) -> FigureChoice:
        """Check what ``--format``, ``--width`` and ``--figures`` say, before anything is computed."""
        from ecokv_cli.figures.registry import parse_figures
        from ecokv_cli.figures.style import KINDS, inches

        chosen = tuple(dict.fromkeys(part.strip().lower() for part in formats.split(",")))
        unknown = [kind for kind in chosen if kind not in KINDS]
        if unknown:
            raise UsageError(f"--format '{unknown[0]}': unknown, choose from {', '.join(KINDS)}")
        inches(width)
        return cls(chosen, width, {kind: parse_figures(figures, kind) for kind in kinds})


@dataclass(frozen=True)
class Findings:
    """What a study hands over to be written.

    Results with tables, one or one per sample; the table that sums them up, settings, drawings, tables that are also
    wanted as Markdown and LaTeX, means over samples, and the samples that were left out, with the reason.
    """

    kind: str
    results: Iterable[Tabular]
    overview: Table
    settings: dict[str, Any]
    drawings: Sequence[Drawing]
    typeset: Sequence[Table] = ()
    summaries: Sequence[Summary] = ()
    failed: dict[str, str] = field(default_factory=dict)


def keep(
    run: Run,
    samples: Sequence[Dump],
    findings: Findings,
    figures: FigureChoice,
    *,
    force: bool,
    extra: Callable[[Path], None] = lambda _: None,
    finished: Path | None = None,
) -> dict[str, Any]:
    """Write findings under their final name at once, then renew the report; returns the summary.

    `finished` holds the parts of single samples, which are not needed once the whole is written.
    """
    from ecokv_cli.dump.versions import versions
    from ecokv_cli.dump.writer import fresh_folder
    from ecokv_cli.figures.gallery import save_drawings
    from ecokv_cli.figures.run_report import write_run_report
    from ecokv_cli.studies.results import summarise, write_results, write_tables
    from ecokv_cli.studies.typeset import write_typeset
    from ecokv_cli.studies.wide import write_wide

    summary = summarise(samples, run.folder, command_line(), versions(), findings.settings, findings.overview)
    summary["failed"] = findings.failed
    folder = run.folder / findings.kind
    with fresh_folder(folder, force=force) as partial:
        write_tables(partial, findings.results)
        write_results(partial, [*findings.typeset, *(each.table for each in findings.summaries)], summary)
        for table in findings.typeset:
            write_typeset(partial, table, table.columns)
        for each in findings.summaries:
            write_wide(partial, each)
        save_drawings(partial / "figures", findings.drawings, figures.formats)
        extra(partial)
    if finished:
        shutil.rmtree(finished, ignore_errors=True)
    report = write_run_report(run.folder)
    return {"run": str(run.folder), "folder": str(folder), "report": str(report), **summary}


def require_free(run: Run, kind: str, *, force: bool) -> None:
    """Refuse before any work when results of this kind are there and may not be replaced."""
    folder = run.folder / kind
    if folder.exists() and not force:
        raise OutputError(f"{folder} exists; add --force to replace it")


def open_samples(
    paths: Sequence[Path] | None, limit: int | None, note: Callable[[str], None]
) -> tuple[Run, Sequence[Dump]]:
    """The first run and the samples of all of them, each with a name of its own.

    The same images with the same prompt are taken once, or means over samples would claim to be surer than they are.

    Raises
    ------
    UsageError
        If the runs are of different models.
    """
    from ecokv_cli.dump.reader import DumpHandle
    from ecokv_cli.dump.runs import find_run
    from ecokv_cli.studies.twins import distinct

    runs = [find_run(path) for path in paths] if paths else [find_run(None)]
    found = [(run, dump, dump.manifest.sample) for run in runs for dump in run.handles()]
    times = Counter(name for _, _, name in found)
    named = [
        dump if times[name] == 1 else DumpHandle(dump.folder, f"{run.folder.name}--{name}") for run, dump, name in found
    ]
    samples, twins = distinct(named)
    if twins:
        note(_left_out(twins))
    samples = samples[:limit]
    first = samples[0].manifest.model
    for dump in samples:
        model = dump.manifest.model
        if (model.layers, model.kv_heads, model.query_heads) != (first.layers, first.kv_heads, first.query_heads):
            raise UsageError(
                f"{dump.folder}: {model.layers} layers x {model.kv_heads} KV heads, the first has {first.layers} x "
                f"{first.kv_heads}; analyse them apart and use ecokv compare"
            )
        if model.id != first.id:
            raise UsageError(
                f"{dump.folder} is of the model {model.id}, the first of {first.id}; analyse them apart and use "
                f"ecokv compare"
            )
    return runs[0], samples


def _left_out(twins: dict[str, str]) -> str:
    """What repeats another sample, in one line."""
    left, kept = next(iter(twins.items()))
    names, as_what = left, kept
    if len(twins) > 1:
        names, as_what = f"{left} and {len(twins) - 1} more", f"{kept} and others"
    return (
        f"{names} left out: the same images and prompt as {as_what}, and a sample counts once; "
        f"to set two runs side by side use ecokv compare"
    )


def averaged(
    single: Table, summed: Table, by: Sequence[str], measures: Sequence[str], titles: Sequence[str]
) -> tuple[str, Sequence[str], list[list[Any]]]:
    """Title, columns and rows for the screen: the rows of a single sample, or means over several."""
    names = single.distinct("sample")
    if len(names) == 1:
        return f"{names[0]}: means over KV heads", titles, [[row[c] for c in (*by, *measures)] for row in single]
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in summed:
        lines.setdefault(tuple(row[c] for c in by), {})[str(row["measure"])] = row["mean"]
    rows = [[*key, *(line.get(measure) for measure in measures)] for key, line in lines.items()]
    return f"means over {len(names)} samples and KV heads; intervals in {summed.name}.csv", titles, rows


def show_failures(screen: Screen, failed: dict[str, str], total: int) -> None:
    """Say what was left out, and end with an error if anything was."""
    for sample, reason in failed.items():
        screen.note(f"{sample}: left out, {reason}")
    if failed:
        raise EcokvError(f"{len(failed)} of {total} samples failed and are left out")


def layer_and_head(option: str, text: str, dump: Dump) -> tuple[int, int]:
    """One layer and one KV head from ``LAYER:HEAD``; negative numbers count from the end."""
    match = re.fullmatch(r"\s*(-?\d+)\s*:\s*(-?\d+)\s*", text)
    if not match:
        raise UsageError(f"{option} '{text}': write LAYER:HEAD, one number each, such as 0:0")
    shape, found = dump.manifest.model, []
    for number, (what, count) in zip(
        map(int, match.groups()), (("layer", shape.layers), ("head", shape.kv_heads)), strict=True
    ):
        if not -count <= number < count:
            raise UsageError(
                f"{option} {text}: {what} {number} is outside 0 to {count - 1}; this dump has {count} {what}s"
            )
        found.append(number % count)
    return found[0], found[1]
