"""``report.html`` of a run, put together from what the folders of its studies hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecokv_cli.dump.runs import Run
from ecokv_cli.figures.evaluation_report import evaluation_sections, evaluation_summaries, write_answers_report
from ecokv_cli.figures.gallery import load_plates
from ecokv_cli.figures.report import Section, TableView, write_report
from ecokv_cli.studies.results import Results, read_results
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.studies.tables import Value

LAYER_MEASURES = (
    "cos_mean", "dist_mean", "effective_rank", "r_euc", "lambda_ecokv", "lambda_mixkv", "lambda_std",
    "spearman",
)  # fmt: skip
METHOD_MEASURES = ("kept", "mass", "output_error", "output_cosine", "oracle_overlap")
WITH_INTERVAL = ("cos_mean", "lambda_ecokv", "spearman", "mass", "output_error")
"""Measures whose intervals are shown beside their means over samples."""

ROWS = 100

LAYER_CAPTION = (
    "Geometry of the keys per layer, means over KV heads. cos_mean: mean cosine of two different keys (1 = all point "
    "the same way). dist_mean: mean distance to the centroid, in units of the keys and not comparable between layers. "
    "effective_rank: directions in even use. r_euc and the lambdas: redundancy, the weight that diversity gets. "
    "spearman: rank correlation of importance and diversity over the candidates."
)
METHOD_CAPTION = (
    "Fidelity per method, means over layers and KV heads, judged by the queries of decoded tokens, which took no part "
    "in the selection (the oracle apart, which sees them). kept: tokens per head, the window included. mass: share of "
    "their attention that falls on what is left (1 = all). output_error: relative error of the attention output "
    "(0 = none). oracle_overlap: Jaccard overlap with the oracle's choice, window left out."
)
ROUTE_COLUMNS = ("budget", "kind", "route", "error", "samples", "rank", "random_routes")
ROUTE_CAPTION = (
    "Relative output error of routes on samples that had no part in choosing them, mean over layers, heads and samples "
    "(0 = none). profiled: the best method of each layer; homogeneous: one method everywhere. rank: place of the "
    "profiled route among random routes that use each method as often (1 = better than all). Each layer is judged with "
    "the full cache upstream."
)
UNMATCHED = (
    "The methods have different windows, so these rows are not matched: a difference can come from the window as well "
    "as from the score. Run ecokv evict with --window W to give all of them the same."
)


def write_run_report(folder: Path) -> Path:
    """Write ``report.html`` into the run folder from the results that are there.

    Parameters
    ----------
    folder
        A run folder with at least a dump, an evaluation or an explained sample.

    Returns
    -------
    Path
        The report.
    """
    run = Run(folder)
    if not run.dump_folder.is_dir() and evaluation_summaries(folder):
        return write_answers_report(folder)
    samples = run.handles()
    analysis, eviction, routing = (read_results(folder / name) for name in ("analysis", "eviction", "routing"))
    found = {"analysis": analysis, "eviction": eviction, "routing": routing}
    sections = [_samples(samples)]
    if analysis:
        sections.append(_analysis(analysis))
    if eviction:
        sections.append(_eviction(eviction))
    if routing:
        sections.append(_routing(routing))
    sections += evaluation_sections(folder)
    studies = {name: results.summary for name, results in found.items() if results} | evaluation_summaries(folder)
    commands = [*(dump.manifest.command for dump in samples), *(summary["command"] for summary in studies.values())]
    settings = {f"{name}: {key}": v for name, summary in studies.items() for key, v in summary["settings"].items()}
    first = samples[0].manifest
    names = ", ".join(dump.manifest.sample for dump in samples[:5])
    return write_report(
        folder / "report.html",
        f"KV cache of {first.model.id}: {names}{' ...' if len(samples) > 5 else ''}",
        sections,
        summary=[
            f"{first.model.architecture}, {first.model.layers} layers, {first.model.query_heads} query heads on "
            f"{first.model.kv_heads} KV heads of dimension {first.model.head_dim}; computed in {first.compute_dtype}, "
            f"stored in {first.stored_dtype}, {first.attention} attention."
        ],
        settings={"model": first.model.id, "revision": first.model.revision, "seed": first.seed, **settings},
        versions=first.versions,
        command="\n".join(dict.fromkeys(commands)),
        highlights=_highlights(samples),
    )


def _highlights(samples: Sequence[Dump]) -> dict[str, str]:
    if len(samples) > 1:
        return {"samples": str(len(samples))}
    manifest = samples[0].manifest
    roles = manifest.tokens.by_role()
    return {
        "prompt tokens": str(len(manifest.tokens.ids)),
        **{f"{role} tokens": str(count) for role, count in roles.items()},
        "held-out queries": str(manifest.decoded.fed_back),
    }


def _samples(samples: Sequence[Dump]) -> Section:
    text = []
    for dump in samples[:20]:
        manifest = dump.manifest
        images = (
            ", ".join(f"{i.source} ({i.used_size[0]} x {i.used_size[1]} px)" for i in manifest.images) or "no image"
        )
        text.append(
            f"{manifest.sample}: {images}. Prompt: “{manifest.prompt}” Greedy answer: “{manifest.decoded.text}”"
        )
        text += [f"{image.source}: {note}" for image in manifest.images for note in image.notes]
    if len(samples) > 20:
        text.append(f"... and {len(samples) - 20} more.")
    return Section("Sample" if len(samples) == 1 else "Samples", text)


def _analysis(results: Results) -> Section:
    settings = results.summary["settings"]
    method = f"{settings['booster']} with a window of {settings['window']}"
    return Section(
        "Geometry",
        [f"Importance, diversity and lambda are those of {method}.", *_left_out(results)],
        [_view(results, "layers", LAYER_CAPTION, ("layer",), LAYER_MEASURES)],
        load_plates(results.folder / "figures"),
        "analysis/figures",
    )


def _eviction(results: Results) -> Section:
    windows = {row["window"] for row in results.summary["results"] if row["method"] != "full"}
    return Section(
        "Eviction",
        [*([UNMATCHED] if len(windows) > 1 else []), *_left_out(results)],
        [_view(results, "methods", METHOD_CAPTION, ("budget", "method", "window"), METHOD_MEASURES)],
        load_plates(results.folder / "figures"),
        "eviction/figures",
    )


def _left_out(results: Results) -> list[str]:
    """A sentence on samples that failed, if any did."""
    failed = results.summary.get("failed")
    return [f"Left out, as they failed: {', '.join(failed)}."] if failed else []


def _routing(results: Results) -> Section:
    settings = results.summary["settings"]
    text = f"Chosen on {settings['calibration']} samples, judged on {settings['evaluation']} others."
    view = TableView(results.table("routes"), ROUTE_CAPTION, ROUTE_COLUMNS, ROWS, f"{results.folder.name}/routes.csv")
    return Section("Method by layer", [text], [view], load_plates(results.folder / "figures"), "routing/figures")


def _view(results: Results, name: str, caption: str, by: tuple[str, ...], measures: tuple[str, ...]) -> TableView:
    """One row per group; for several samples their means, with intervals where they matter most."""
    summed, file = results.table(f"{name}_over_samples"), f"{results.folder.name}/{name}.csv"
    samples = int(max(summed.numbers("n")))
    if samples == 1:
        return TableView(results.table(name), caption, (*by, *measures), ROWS, file)
    by = (*(("model",) if len(summed.distinct("model")) > 1 else ()), *by)
    ends = {measure: (f"{measure}_low", f"{measure}_high") for measure in measures if measure in WITH_INTERVAL}
    columns = [column for measure in measures for column in (measure, *ends.get(measure, ()))]
    groups: dict[tuple[Value, ...], dict[str, Value]] = {}
    for row in summed.among("measure", measures):
        measure = str(row["measure"])
        group = groups.setdefault(tuple(row[c] for c in by), dict.fromkeys(columns))
        group |= dict(zip((measure, *ends.get(measure, ())), (row["mean"], row["low"], row["high"]), strict=False))
    means = Table(f"{name}_over_samples", (*by, *columns))
    for key, numbers in groups.items():
        means.add(**dict(zip(by, key, strict=True)), **numbers)
    caption += (
        f" Means over {samples:,} samples; low and high are the ends of the 95 % bootstrap interval of the mean over "
        "samples. The file has every sample."
    )
    return TableView(means, caption, (), ROWS, file)
