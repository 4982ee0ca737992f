"""What an evaluation and explained samples fill in ``report.html``, and the report of a run that has only these."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ecokv_cli.figures.gallery import load_plates
from ecokv_cli.figures.report import Section, TableView, write_report
from ecokv_cli.studies.results import read_results
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from pathlib import Path

    from ecokv_cli.studies.results import Results

ROWS = 100
HEADS = 12
FOLDER = "evaluation"

ACCURACY_COLUMNS = (
    "budget", "method", "window", "kept", "mean", "low", "high", "n", "against", "difference", "difference_low",
    "difference_high", "p",
)  # fmt: skip
COST_COLUMNS = (
    "budget", "method", "window", "ledger_bytes", "ledger_ratio", "cache_bytes", "cache_ratio", "peak_bytes",
    "peak_ratio", "prefill_seconds", "scoring_share", "seconds_per_token", "decode_ratio",
    "decode_ratio_low", "decode_ratio_high",
)  # fmt: skip
METHOD_COLUMNS = (
    "budget", "method", "window", "prediction", "score", "mass", "output_error", "region_kept", "region_attention",
    "region_lost",
)  # fmt: skip

PAPER_CAPTION = (
    "Methods by budgets: mean score with its 95 % bootstrap interval over samples, and below it the paired difference "
    "to what the method builds on (its host, or the full cache) with its interval and the p-value of a permutation "
    "test. * marks the best of each budget, ties included."
)
ACCURACY_CAPTION = (
    "The same numbers, a row each. kept: entries per KV head and layer, mean. low and high: ends of the 95 % "
    "bootstrap interval over n samples. difference: of the means of the same samples, to the method in the column "
    "against; p: two-sided permutation test of it, not corrected for the number of rows. Rows of different windows "
    "are not matched."
)
COST_CAPTION = (
    "Costs, means over samples; the row without a budget is the full cache, and ratios are to it. ledger_bytes: kept "
    "entries times bytes per entry. cache_bytes: what the prompt's cache really takes, with padding of ragged heads, "
    "masks and memories. peak_bytes: {peak}. scoring_share: time to score and select over that of the prefill. "
    "seconds_per_token: of decoding. Times include whatever else the machine did."
)
PEAKS = {
    "allocated": "most that decoding allocates on the GPU, beyond weights and the cache of the prefill",
    "counted": "size of the cache after the last token, counted, as memory is not measured on this device",
}
METHODS_CAPTION = (
    "The sample's answer by each method beside what its heads kept, means over layers and KV heads, judged by the "
    "queries of the answer that the full cache gives. mass: their attention that falls on what is left (1 = all). "
    "output_error: relative error of the attention output. region: image tokens that a box of the answer overlaps; "
    "region_kept: share of them kept, region_attention: attention on them on the full cache, region_lost: the part of "
    "it that is evicted."
)
HEADS_CAPTION = (
    "Heads by what they lose at the smallest budget, mean over methods, the worst first: attention is what there is "
    "to lose, the columns of the methods what each loses of it."
)


def evaluation_summaries(run: Path) -> dict[str, dict[str, Any]]:
    """Summaries of the evaluation and of explained samples, by name."""
    return {name: results.summary for name, results in _found(run).items()}


def evaluation_sections(run: Path) -> list[Section]:
    """Chapters of the evaluation and of explained samples; empty if there are none."""
    return [_evaluation(results) if name == FOLDER else _explained(results) for name, results in _found(run).items()]


def write_answers_report(run: Path) -> Path:
    """Write ``report.html`` of a run folder that holds an evaluation or explained samples, and no dump."""
    summaries = evaluation_summaries(run)
    first = next(iter(summaries.values()))
    model = first["settings"]["model"]
    return write_report(
        run / "report.html",
        f"Answers of {model} on evicted caches: {first['task']}",
        evaluation_sections(run),
        summary=[
            "One prefill per sample; then each method evicts, and the answer is decoded greedily on what is left, "
            f"every token at its original position. Scored by {first['metric']}: {first['reading']}."
        ],
        settings={
            f"{name}: {key}": value for name, each in summaries.items() for key, value in each["settings"].items()
        },
        versions=first["versions"],
        command="\n".join(dict.fromkeys(each["command"] for each in summaries.values())),
    )


def _found(run: Path) -> dict[str, Results]:
    """The evaluation, then explained samples by name."""
    samples = sorted(path for path in (run / FOLDER / "explain").glob("*") if not path.name.startswith("."))
    places = {FOLDER: run / FOLDER, **{f"{path.name}": path for path in samples}}
    return {name: results for name, path in places.items() if (results := read_results(path))}


def _evaluation(results: Results) -> Section:
    cost = results.table("cost")
    sources = [PEAKS[str(source)] for source in cost.distinct("peak_source")]
    windows = {row["window"] for row in cost if row["budget"] is not None}
    text = [f"Task {results.summary['task']}, scored by {results.summary['metric']}: {results.summary['reading']}."]
    if len(windows) > 1:
        text.append("Windows differ between rows: compare rows of the same window.")
    if results.summary["failed"]:
        text.append(f"Left out, as they failed: {', '.join(results.summary['failed'])}.")
    views = [
        TableView(_unbroken(results.table("accuracy_by_budget")), PAPER_CAPTION, (), ROWS),
        TableView(results.table("accuracy"), ACCURACY_CAPTION, ACCURACY_COLUMNS, ROWS, f"{FOLDER}/accuracy.csv"),
        TableView(cost, COST_CAPTION.format(peak=" or ".join(sources)), COST_COLUMNS, ROWS, f"{FOLDER}/cost.csv"),
    ]
    return Section("Answers", text, views, load_plates(results.folder / "figures"), f"{FOLDER}/figures")


def _explained(results: Results) -> Section:
    sample = results.summary["sample"]
    place = f"{FOLDER}/explain/{results.folder.name}"
    # Predictions from the summary, as a CSV file does not tell "007" from 7.
    methods = Table("explain_methods", METHOD_COLUMNS, results.summary["results"])
    heads = results.table("explain_heads")
    text = [
        f"“{sample['prompt']}” Accepted: {', '.join(sample['answers'])}. On the full cache: “{sample['full']}”.",
        *([sample["note"] + "."] if sample["note"] else []),
    ]
    views = [
        TableView(methods, METHODS_CAPTION, (), ROWS, f"{place}/explain_methods.csv"),
        TableView(heads, HEADS_CAPTION, heads.columns[1:], HEADS, f"{place}/explain_heads.csv"),
    ]
    return Section(
        f"Sample {sample['id']} explained", text, views, load_plates(results.folder / "figures"), f"{place}/figures"
    )


def _unbroken(table: Table) -> Table:
    """The table with intervals and p-values that no line breaks."""
    spaces = str.maketrans({" ": "\N{NO-BREAK SPACE}"})
    rows = [
        {c: re.sub(r"\[[^]]+\]|p [=<] \S+", lambda part: part[0].translate(spaces), v) if isinstance(v, str) else v
         for c, v in row.items()}
        for row in table
    ]  # fmt: skip
    return Table(table.name, table.columns, rows)
