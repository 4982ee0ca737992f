"""What the subcommands share: figure settings, results on disk, and places given as LAYER:HEAD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ecokv_cli.cli.console import command_line
from ecokv_cli.errors import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.runs import Run
    from ecokv_cli.figures.drawing import Drawing
    from ecokv_cli.studies.tables import Table


@dataclass(frozen=True)
class FigureChoice:
    """How figures are written."""

    formats: tuple[str, ...]
    width: str

    @classmethod
    def parse(cls, formats: str, width: str) -> FigureChoice:
        """Check what ``--format`` and ``--width`` say, before anything is computed."""
        from ecokv_cli.figures.style import KINDS, inches

        chosen = tuple(dict.fromkeys(part.strip().lower() for part in formats.split(",")))
        unknown = [kind for kind in chosen if kind not in KINDS]
        if unknown:
            raise UsageError(f"--format '{unknown[0]}': unknown, choose from {', '.join(KINDS)}")
        inches(width)
        return cls(chosen, width)


@dataclass(frozen=True)
class Findings:
    """What a study hands over to be written: all tables, the one that sums them up, settings and drawings."""

    kind: str
    tables: Sequence[Table]
    overview: Table
    settings: dict[str, Any]
    drawings: Sequence[Drawing]


def keep(
    run: Run,
    samples: Sequence[Dump],
    findings: Findings,
    figures: FigureChoice,
    *,
    force: bool,
    extra: Callable[[Path], None] = lambda _: None,
) -> dict[str, Any]:
    """Write findings under their final name at once, then renew the report; returns the summary."""
    from ecokv_cli.dump.versions import versions
    from ecokv_cli.dump.writer import fresh_folder
    from ecokv_cli.figures.gallery import save_drawings
    from ecokv_cli.figures.run_report import write_run_report
    from ecokv_cli.studies.results import summarise, write_results

    summary = summarise(samples, command_line(), versions(), findings.settings, findings.overview)
    folder = run.folder / findings.kind
    with fresh_folder(folder, force=force) as partial:
        write_results(partial, findings.tables, summary)
        save_drawings(partial / "figures", findings.drawings, figures.formats)
        extra(partial)
    report = write_run_report(run.folder)
    return {"run": str(run.folder), "folder": str(folder), "report": str(report), **summary}


def require_free(run: Run, kind: str, *, force: bool) -> None:
    """Refuse before any work when results of this kind are there and may not be replaced."""
    folder = run.folder / kind
    if folder.exists() and not force:
        raise OutputError(f"{folder} exists; add --force to replace it")


def layer_and_head(option: str, text: str, dump: Dump) -> tuple[int, int]:
    """One layer and one KV head from ``LAYER:HEAD``."""
    from ecokv_cli.dump.runs import parse_range

    layer, colon, head = text.partition(":")
    shape = dump.manifest.model
    if not colon:
        raise UsageError(f"{option} '{text}': write LAYER:HEAD, such as 0:0")
    layers = parse_range(layer, shape.layers, "layers")
    heads = parse_range(head, shape.kv_heads, "heads")
    if len(layers) != 1 or len(heads) != 1:
        raise UsageError(f"{option} '{text}': name one layer and one head, such as 0:0")
    return layers[0], heads[0]
