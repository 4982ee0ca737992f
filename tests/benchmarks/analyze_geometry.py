"""Speed and memory of `ecokv analyze` on one synthetic layer, as ratios measured in one run.

Run it by hand, on an otherwise idle machine: ``python tests/benchmarks/analyze_geometry.py``. Tables come out in
Markdown and answer three questions.

1. How much faster than the script a user would write with scikit-learn, SciPy and NumPy?
2. How much slower than reading the layer and one D x D covariance product per head, which no analysis can avoid?
3. How much memory does a very long layer take?

The two sides of a ratio run in turns, and the ratio is the median of those of the turns, which bears slow changes of
the machine's load. Each turn of question 2 reads the layer anew. Counting pairs for the quantiles of the cosine has a
column of its own: up to 4096 tokens all N (N - 1) / 2 are counted, and no other number takes time that grows so.

Question 2 has a process of its own, in which glibc keeps the memory it once has and threads do not fall asleep between
calls. Otherwise it depends on the history of a process whether megabytes are given back and asked for again in each
turn, of one side or of both, and on the machine how long it takes to wake a core; either can double a time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from naive_geometry import usual_script
from synthetic_layer import DIM, KV_HEADS, read_and_multiply, write_dump, written

from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.geometry.cloud import survey
from ecokv_cli.geometry.correlation import rank_correlation
from ecokv_cli.geometry.projection import spectrum
from ecokv_cli.geometry.sinks import Sinks
from ecokv_cli.studies.analyze import AnalyzeSettings
from ecokv_cli.studies.analyze.geometry import geometry_rows, statistics
from ecokv_cli.studies.analyze.measured import Measured
from ecokv_cli.studies.analyze.prompt import Prompt
from ecokv_cli.studies.analyze.rows import unstack
from ecokv_cli.studies.analyze.study import empty_analysis

if TYPE_CHECKING:
    from collections.abc import Callable

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.eviction.layer import Layer

LONG = 256 * 1024
STEADY = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25), "OMP_WAIT_POLICY": "active"}
"""Environment of the process of question 2; glibc takes no larger threshold for mmap."""

SETTINGS = AnalyzeSettings((0,), tuple(range(KV_HEADS)), parse_method("snapkv+ecokv"), 20_000, 0, ())


def same_numbers(keys: torch.Tensor, importance: torch.Tensor, diversity: torch.Tensor) -> list[dict[str, float]]:
    """What `usual_script` finds, in closed form."""
    n, cloud = keys.shape[1], survey(keys)
    columns = {
        "cos_mean": cloud.cosine_mean, "cos_std": cloud.cosine_std,
        "pair_distance_rms": (2 * n / (n - 1) * cloud.distances.square().mean(1)).sqrt(),
        "dist_mean": cloud.distances.mean(1), "pca_1": spectrum(cloud.covariance).ratios[:, 0],
    }  # fmt: skip
    correlations = rank_correlation(importance, diversity)
    return [{**row, "spearman": rho.rho} for row, rho in zip(unstack(columns), correlations, strict=True)]


class KeysOnly(Measured):
    """A layer of which only the keys are analysed, as in the usual script."""

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {"keys": self.layer.keys}


class Geometry:
    """What of the analysis of one layer is timed."""

    def __init__(self, layer: Layer, prompt: Prompt) -> None:
        self.prompt = prompt
        measured = Measured(layer, prompt, SETTINGS)
        self.histograms = measured.histograms
        self.scores = measured.boosted.importance, measured.boosted.diversity

    def counted(self, kind: type[Measured], layer: Layer) -> Measured:
        """A layer of which nothing but the histograms is measured yet."""
        measured = kind(replace(layer), self.prompt, SETTINGS)
        vars(measured)["histograms"] = self.histograms
        return measured

    def usual(self, layer: Layer) -> None:
        """The numbers of the usual script."""
        same_numbers(layer.keys, *self.scores)

    def columns(self, layer: Layer) -> None:
        """What geometry.csv has for any tensor: norms, distances, cosines, PCA, ranks, each also without a sink."""
        measured = self.counted(KeysOnly, layer)
        vars(measured)["sinks"] = Sinks(torch.tensor([0]), torch.ones(1), torch.ones(1))
        statistics(measured, "keys")

    def with_method(self, layer: Layer) -> None:
        """All of geometry.csv for keys: window attention, sinks, importance and diversity of every key, lambda, rho."""
        list(geometry_rows(self.counted(KeysOnly, layer)))

    def tables(self, layer: Layer) -> None:
        """All tables of keys and values."""
        empty_analysis().add(self.counted(Measured, layer))


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(calls: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Seconds of each call in each turn, after one turn that does not count."""
    found = [{name: timed(call) for name, call in calls.items()} for _ in range(turns + 1)]
    return {name: [turn[name] for turn in found[1:]] for name in calls}


def ratio(above: list[float], below: list[float]) -> float:
    """Median over turns."""
    return median(a / b for a, b in zip(above, below, strict=True))


def against_script(tokens: int, turns: int) -> list[str]:
    """One row of the first table."""
    with tempfile.TemporaryDirectory() as folder:
        dump = write_dump(Path(folder), tokens, torch.float32)
        layer, geometry = dump.layer(0), Geometry(dump.layer(0), Prompt(dump.manifest))
    arrays = layer.keys.numpy(), *(score.numpy() for score in geometry.scores)
    for ours, theirs in zip(same_numbers(layer.keys, *geometry.scores), usual_script(*arrays), strict=True):
        np.testing.assert_allclose([ours[name] for name in theirs], list(theirs.values()), rtol=1e-3)
    script, same, rows = [], [], []
    for _ in range(turns):
        script.append(timed(lambda: usual_script(*arrays)))
        calls = {"same": lambda: geometry.usual(layer), "rows": lambda: geometry.with_method(layer)}
        times = in_turns(calls, 7)
        same.append(median(times["same"]))
        rows.append(median(times["rows"]))
    numbers = f"{median(script):.2f}", f"{median(same):.4f}", f"{ratio(script, same):.0f}", f"{median(rows):.4f}"
    return [f"{tokens:,}", *numbers, f"{ratio(script, rows):.0f}"]


def against_reading(tokens: int, turns: int) -> list[list[str]]:
    """Rows of the second table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        dump = write_dump(Path(folder), tokens, torch.bfloat16)
        layer = dump.layer(0)
        geometry = Geometry(layer, Prompt(dump.manifest))
        counting = timed(lambda: Measured(layer, geometry.prompt, SETTINGS).histograms)
        for what, names, work in (
            ("keys: numbers of the usual script", ("keys",), geometry.usual),
            ("keys: columns of any tensor", ("keys",), geometry.columns),
            ("keys: all columns", ("keys",), geometry.with_method),
            ("all tables, keys and values", ("keys", "values"), geometry.tables),
        ):
            calls = {"floor": partial(read_and_multiply, dump, names), "ours": partial(_read_and, work, dump)}
            floor, ours = in_turns(calls, turns).values()
            numbers = f"{1000 * median(floor):.1f}", f"{1000 * median(ours):.1f}", f"{ratio(ours, floor):.1f}"
            rows.append([f"{tokens:,}", what, *numbers, f"{1000 * counting:.0f}" if len(names) > 1 else ""])
    return rows


def _read_and(work: Callable[[Layer], None], dump: Dump) -> None:
    work(dump.layer(0))


def memory(tokens: int) -> list[list[str]]:
    """Rows of the third table, each measured in a process of its own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_dump(Path(folder), tokens, torch.bfloat16)
        for what in ("ecokv", "usual script") if tokens <= 8192 else ("ecokv",):
            found = in_child(what, tokens, "--folder", folder)
            layer = 2 * KV_HEADS * tokens * DIM * 4 / 2**20
            numbers = [f"{number:.0f}" for number in (layer, found["read"], found["peak"])]
            rows.append([f"{tokens:,}", what, *numbers, f"{found['seconds']:.1f}"])
    return rows


def in_child(what: str, tokens: int, *options: object, steady: bool = False) -> Any:
    """What another process finds."""
    command = [sys.executable, __file__, "--child", what, "--tokens", str(tokens), *map(str, options)]
    env = os.environ | (STEADY if steady else {})
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)


def peak_rss() -> float:
    """Largest resident memory of this process so far, in MiB; unlike getrusage it leaves out that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


def child(what: str, folder: Path, tokens: int) -> None:
    """Read and analyse one layer, and print the memory that took."""
    dump = written(folder, tokens)
    start, before = time.perf_counter(), peak_rss()
    layer = dump.layer(0)
    read = peak_rss() - before
    if what == "ecokv":
        empty_analysis().add(Measured(layer, Prompt(dump.manifest), SETTINGS))
    else:
        scores = layer.values.norm(dim=-1).numpy()
        usual_script(layer.keys.numpy(), scores, scores)
    print(json.dumps({"read": read, "peak": peak_rss() - before, "seconds": time.perf_counter() - start}))


@torch.inference_mode()  # as the study does
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--long", type=int, default=LONG, help="tokens of the long layer")
    parser.add_argument("--turns", type=int, default=31, help="of question 2; question 1 has a tenth of them")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child == "reading":
        print(json.dumps(against_reading(arguments.tokens[0], arguments.turns)))
        return
    if arguments.child:
        child(arguments.child, arguments.folder, arguments.tokens[0])
        return
    print(f"{KV_HEADS} KV heads, D = {DIM}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    few = max(arguments.turns // 10, 1)
    columns = (
        "tokens",
        "usual script s",
        "same numbers s",
        "times faster",
        "all columns of the keys s",
        "times faster",
    )
    show("1. keys of a layer", columns, [against_script(n, few) for n in arguments.tokens])
    columns = ("tokens", "what", "floor: read + product(s) ms", "ecokv ms", "ratio", "counting pairs, apart, ms")
    rows = [row for n in arguments.tokens for row in in_child("reading", n, "--turns", arguments.turns, steady=True)]
    show("2. reading (bfloat16) and analysing a layer", columns, rows)
    columns = ("tokens", "what", "layer in fp32 MiB", "peak while reading MiB", "peak MiB", "seconds")
    show("3. memory", columns, [row for n in (*arguments.tokens, arguments.long) for row in memory(n)])


def show(title: str, columns: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    lines = [columns, ["---"] + ["--:"] * (len(columns) - 1), *rows]
    print(f"\n{title}\n", *(f"| {' | '.join(line)} |" for line in lines), sep="\n", flush=True)


if __name__ == "__main__":
    main()
