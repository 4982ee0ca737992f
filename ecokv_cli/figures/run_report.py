"""``report.html`` of a run, put together from what the folders of its studies hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ecokv_cli.dump.runs import Run
from ecokv_cli.figures.evaluation_report import evaluation_sections, evaluation_summaries, write_answers_report
from ecokv_cli.figures.gallery import load_plates
from ecokv_cli.figures.provenance import all_versions, command_lines, distinct, model_words
from ecokv_cli.figures.report import Section, TableView, write_report
from ecokv_cli.studies.results import Results, read_results
from ecokv_cli.studies.sources import joined, sources
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
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
TITLED, DESCRIBED = 5, 20
"""Samples that the title names, and of which the page tells prompt and answer."""

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
    names = ("analysis", "eviction", "routing")
    found = {name: results for name in names if (results := read_results(folder / name))}
    elsewhere = _elsewhere(found.values())
    chapters = {"analysis": _analysis, "eviction": _eviction, "routing": _routing}
    sections = [
        _samples(samples, elsewhere),
        *(chapters[name](results) for name, results in found.items()),
        *evaluation_sections(folder),
    ]
    studies = {name: results.summary for name, results in found.items()} | evaluation_summaries(folder)
    settings = {f"{name}: {key}": v for name, summary in studies.items() for key, v in summary["settings"].items()}
    made = joined([sources(samples, folder), *(_others(results) for results in found.values())])
    model, count = ", ".join(distinct(made, "model")), len(samples) + len(elsewhere)
    first = ", ".join(dump.manifest.sample for dump in samples[:TITLED])
    versions = {"dump": [source["versions"] for source in made]}
    return write_report(
        folder / "report.html",
        f"KV cache of {model}: {first}{' ...' if count > min(len(samples), TITLED) else ''}",
        sections,
        summary=model_words(made),
        settings={"model": model, **{name: distinct(made, name) for name in ("revision", "seed")}, **settings},
        versions=all_versions(versions | {name: [summary["versions"]] for name, summary in studies.items()}),
        command=command_lines(
            (command for source in made for command in source["commands"]),
            (summary["command"] for summary in studies.values()),
        ),
        highlights=_one(samples[0]) if count == 1 else _several(count, len(distinct(made, "run"))),
    )


def _one(dump: Dump) -> dict[str, str]:
    tokens = dump.manifest.tokens
    return {
        "prompt tokens": str(len(tokens.ids)),
        **{f"{role} tokens": str(count) for role, count in tokens.by_role().items()},
        "held-out queries": str(dump.manifest.decoded.fed_back),
    }


def _several(samples: int, runs: int) -> dict[str, str]:
    return {"samples": f"{samples:,}"} | ({"runs": str(runs)} if runs > 1 else {})


def _others(results: Results) -> list[dict[str, Any]]:
    """The dumps of other runs that a study went over as well."""
    return [source for source in results.summary.get("dumps", ()) if not source["here"]]


def _elsewhere(studies: Iterable[Results]) -> list[dict[str, Any]]:
    """Samples of other runs, as the summaries describe them."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for results in studies:
        runs = {source["run"] for source in _others(results)}
        for sample in results.summary["samples"] if runs else ():
            if sample["run"] in runs:
                found.setdefault((sample["run"], sample["sample"]), sample)
    return list(found.values())


def _samples(samples: Sequence[Dump], elsewhere: Sequence[Mapping[str, Any]]) -> Section:
    """The first samples, those of this run before those of others."""
    text = []
    for dump in samples[:DESCRIBED]:
        manifest = dump.manifest
        images = [f"{i.source} ({i.used_size[0]} x {i.used_size[1]} px)" for i in manifest.images]
        text.append(_sample(manifest.sample, images, manifest.prompt, manifest.decoded.text))
        text += [f"{image.source}: {note}" for image in manifest.images for note in image.notes]
    for other in elsewhere[: max(DESCRIBED - len(samples), 0)]:
        words = _sample(other["sample"], other["images"], other["prompt"], other["answer"])
        text.append(f"Of {other['run']}: {words}")
    count = len(samples) + len(elsewhere)
    if count > DESCRIBED:
        text.append(f"... and {count - DESCRIBED:,} more.")
    return Section("Sample" if count == 1 else "Samples", text)


def _sample(name: str, images: Sequence[str], prompt: str, answer: str) -> str:
    return f"{name}: {', '.join(images) or 'no image'}. Prompt: “{prompt}” Greedy answer: “{answer}”"


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
