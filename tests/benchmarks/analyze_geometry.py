"""Speed and memory of `ecokv analyze` on one synthetic layer, as ratios measured in one run.

Three questions, printed as tables:

1. How much faster than the script a user would write with scikit-learn, SciPy and NumPy?
2. How much slower than reading the layer and one D x D covariance product per head, which no analysis can avoid?
3. How much memory does a very long layer take?

Run it by hand, on an otherwise idle machine: ``python tests/benchmarks/analyze_geometry.py``
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.metrics import pairwise_distances
from sklearn.metrics.pairwise import cosine_similarity

from ecokv_cli.dump.reader import Dump
from ecokv_cli.dump.schema import Decoded, ImageGrid, LayerFile, Manifest, ModelInfo, Tokens
from ecokv_cli.dump.writer import LayerWriter
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.geometry.cloud import survey
from ecokv_cli.geometry.correlation import rank_correlation
from ecokv_cli.geometry.cosines import EXACT_TOKENS
from ecokv_cli.geometry.projection import spectrum
from ecokv_cli.studies.analyze import AnalyzeSettings
from ecokv_cli.studies.analyze.geometry import geometry_rows
from ecokv_cli.studies.analyze.measured import Measured
from ecokv_cli.studies.analyze.prompt import Prompt
from ecokv_cli.studies.analyze.rows import unstack
from ecokv_cli.studies.analyze.study import empty_analysis

if TYPE_CHECKING:
    from collections.abc import Callable

    from ecokv_cli.eviction.layer import Layer

KV_HEADS, QUERY_HEADS, DIM, WINDOW, STEPS = 4, 28, 128, 32, 32
LONG = 256 * 1024


def tensors(tokens: int) -> dict[str, torch.Tensor]:
    """A layer in the shape of Qwen2-VL-7B's, with a common direction in the keys as real ones have."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "keys": draw(KV_HEADS, tokens, DIM) + draw(KV_HEADS, 1, DIM),
        "values": draw(KV_HEADS, tokens, DIM),
        "window_queries": draw(QUERY_HEADS, WINDOW, DIM),
        "decode_queries": draw(QUERY_HEADS, STEPS, DIM),
        "decode_keys": draw(KV_HEADS, STEPS, DIM),
        "decode_values": draw(KV_HEADS, STEPS, DIM),
    }


def write_dump(folder: Path, tokens: int, dtype: torch.dtype) -> Dump:
    """One layer on disk."""
    writer = LayerWriter(folder)
    writer.add(0, {name: tensor.to(dtype) for name, tensor in tensors(tokens).items()}, DIM**-0.5)
    return Dump(folder, synthetic_manifest(tokens, tuple(writer.records)))


def synthetic_manifest(tokens: int, layers: tuple[LayerFile, ...]) -> Manifest:
    """A prompt that is nine tenths image."""
    side = int((0.9 * tokens) ** 0.5)
    roles = ("special",) + ("image",) * side**2
    roles += ("text",) * (tokens - len(roles))
    nothing = (None,) * tokens
    return Manifest(
        schema_version="1.0", created="", sample="page", command="", seed=0, attention="sdpa",
        model=ModelInfo("synthetic", None, "", "", "", 1, QUERY_HEADS, KV_HEADS, DIM, remote_code=False),
        compute_dtype="bfloat16", stored_dtype="bfloat16", device="cpu", processor={}, images=(), prompt="",
        grids=(ImageGrid(0, 1, side, side, (0.0, 0.0, 1.0, 1.0), 0),), rendered_sha256="",
        tokens=Tokens((0,) * tokens, ("x",) * tokens, roles, nothing, nothing, nothing), position_ids=(),
        decoded=Decoded((0,) * STEPS, ("x",) * STEPS, "", ended=False),
        window=WINDOW, tensors=(), layers=layers, seconds={}, versions={},
    )  # fmt: skip


SETTINGS = AnalyzeSettings((0,), tuple(range(KV_HEADS)), parse_method("snapkv+ecokv"), 20_000, 0, ())


def usual_script(keys: np.ndarray, importance: np.ndarray, diversity: np.ndarray) -> list[dict[str, float]]:
    """What one would write: all pairs, and one library call per number."""
    found = []
    for head in range(len(keys)):
        k = keys[head]
        upper = np.triu_indices(len(k), 1)
        cosines = cosine_similarity(k)[upper]
        distances = pairwise_distances(k)[upper]
        ratios = PCA().fit(k).explained_variance_ratio_
        to_centre = np.linalg.norm(k - k.mean(0), axis=1)
        found.append({
            "cos_mean": float(cosines.mean()), "cos_std": float(cosines.std()),
            "pair_distance_rms": float(np.sqrt(np.mean(distances**2))), "dist_mean": float(to_centre.mean()),
            "pca_1": float(ratios[0]), "spearman": float(spearmanr(importance[head], diversity[head]).statistic),
        })  # fmt: skip
    return found


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

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {"keys": self.layer.keys}


def keys_alone(layer: Layer, prompt: Prompt, rows: Callable[[KeysOnly], object]) -> float:
    """Seconds for numbers on the keys in geometry.csv.

    Counting all pairs for the quantiles is left out where it is done (up to `EXACT_TOKENS`): it has its own column,
    and the usual script has none.
    """
    measured = KeysOnly(replace(layer), prompt, SETTINGS)
    if layer.tokens <= EXACT_TOKENS:
        _ = measured.histograms
    start = time.perf_counter()
    rows(measured)
    return time.perf_counter() - start


def geometry_and_method(measured: KeysOnly) -> None:
    """Every column: geometry, sinks, quantiles, importance and diversity of every key, lambda, correlation."""
    list(geometry_rows(measured))


def all_tables(layer: Layer, prompt: Prompt) -> tuple[float, float]:
    """Seconds for all tables of keys and values, and for the cosine histograms among them."""
    measured = Measured(replace(layer), prompt, SETTINGS)
    start = time.perf_counter()
    _ = measured.histograms
    counted = time.perf_counter()
    empty_analysis().add(measured)
    return time.perf_counter() - start, counted - start


def read_plainly(dump: Dump) -> dict[str, torch.Tensor]:
    """The tensors of the layer in fp32, by the safetensors library alone."""
    return {name: tensor.float() for name, tensor in load_file(dump.folder / dump.manifest.layers[0].file).items()}


def covariances(tensor: torch.Tensor) -> list[torch.Tensor]:
    """One D x D product per head."""
    return [head.T @ head for head in tensor]


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def best(call: Callable[[], float], repeats: int) -> float:
    """Shortest of some times."""
    return min(call() for _ in range(repeats))


def against_script(tokens: int, repeats: int) -> list[str]:
    """One row of the first table."""
    with tempfile.TemporaryDirectory() as folder:
        dump = write_dump(Path(folder), tokens, torch.float32)
        layer, prompt = dump.layer(0), Prompt(dump.manifest)
    boosted = Measured(layer, prompt, SETTINGS).boosted
    scores = boosted.importance, boosted.diversity
    arrays = layer.keys.numpy(), *(score.numpy() for score in scores)
    for ours, theirs in zip(same_numbers(layer.keys, *scores), usual_script(*arrays), strict=True):
        np.testing.assert_allclose([ours[name] for name in theirs], list(theirs.values()), rtol=1e-3)
    script = best(lambda: timed(lambda: usual_script(*arrays)), 3)
    same = best(lambda: timed(lambda: same_numbers(layer.keys, *scores)), repeats)
    rows = best(lambda: keys_alone(layer, prompt, geometry_and_method), repeats)
    pairs = f"{timed(lambda: KeysOnly(layer, prompt, SETTINGS).histograms):.2f}" if tokens <= EXACT_TOKENS else "-"
    times = (f"{script:.2f}", f"{same:.4f}", f"{script / same:.0f}", f"{rows:.4f}", f"{script / rows:.0f}", pairs)
    return [f"{tokens:,}", *times]


def against_reading(tokens: int, repeats: int) -> list[list[str]]:
    """Rows of the second table."""
    with tempfile.TemporaryDirectory() as folder:
        dump = write_dump(Path(folder), tokens, torch.bfloat16)
        layer, prompt = dump.layer(0), Prompt(dump.manifest)
        read = best(lambda: timed(lambda: read_plainly(dump)), repeats)
        checked = best(lambda: timed(lambda: dump.layer(0)), repeats)
    product = best(lambda: timed(lambda: covariances(layer.keys)), repeats)
    alone = checked + best(lambda: timed(lambda: spectrum(survey(layer.keys).covariance)), repeats)
    keys = checked + best(lambda: keys_alone(layer, prompt, geometry_and_method), repeats)
    runs = [all_tables(layer, prompt) for _ in range(repeats)]
    histograms = min(counted for _, counted in runs)
    everything = checked + min(total - counted for total, counted in runs)
    if tokens > EXACT_TOKENS:
        everything += histograms
    rows = [
        ("keys: cosines, distances, PCA", read + product, alone, ""),
        ("keys: all columns", read + product, keys, ""),
        ("all tables, keys and values", read + 2 * product, everything, f"{1000 * histograms:.0f}"),
    ]
    return [
        [f"{tokens:,}", what, f"{1000 * floor:.1f}", f"{1000 * ours:.1f}", f"{ours / floor:.1f}", note]
        for what, floor, ours, note in rows
    ]


def memory(tokens: int) -> list[list[str]]:
    """Rows of the third table, each measured in a process of its own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_dump(Path(folder), tokens, torch.bfloat16)
        for what in ("ecokv", "usual script") if tokens <= 8192 else ("ecokv",):
            command = [sys.executable, __file__, "--child", what, "--folder", folder, "--tokens", str(tokens)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            layer = 2 * KV_HEADS * tokens * DIM * 4 / 2**20
            numbers = [f"{number:.0f}" for number in (layer, found["read"], found["peak"])]
            rows.append([f"{tokens:,}", what, *numbers, f"{found['seconds']:.1f}"])
    return rows


def peak_rss() -> float:
    """Largest resident memory of this process so far, in MiB; unlike getrusage it leaves out that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


def child(what: str, folder: Path, tokens: int) -> None:
    """Read and analyse one layer, and print the memory that took."""
    file = next(folder.glob("*.safetensors"))
    record = LayerFile(0, file.name, file.stat().st_size, "", DIM**-0.5, {})
    dump = Dump(folder, synthetic_manifest(tokens, (record,)))
    start, before = time.perf_counter(), peak_rss()
    layer = dump.layer(0)
    read = peak_rss() - before
    if what == "ecokv":
        all_tables(layer, Prompt(dump.manifest))
    else:
        scores = layer.values.norm(dim=-1).numpy()
        usual_script(layer.keys.numpy(), scores, scores)
    print(json.dumps({"read": read, "peak": peak_rss() - before, "seconds": time.perf_counter() - start}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--long", type=int, default=LONG, help="tokens of the long layer")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.folder, arguments.tokens[0])
        return
    console = Console(width=120)
    console.print(f"{KV_HEADS} KV heads, D = {DIM}, {torch.get_num_threads()} threads, shortest of several runs")
    columns = (
        "tokens", "usual script s", "same numbers s", "times faster", "all columns of the keys s", "times faster",
        "counting all pairs, apart, s",
    )  # fmt: skip
    show(console, "1. keys of a layer", columns, [against_script(n, arguments.repeats) for n in arguments.tokens])
    columns = ("tokens", "what", "floor: read + product(s) ms", "ecokv ms", "ratio", "histograms, apart if exact, ms")
    rows = [row for n in arguments.tokens for row in against_reading(n, arguments.repeats)]
    show(console, "2. reading (bfloat16) and analysing a layer", columns, rows)
    columns = ("tokens", "what", "layer in fp32 MiB", "peak while reading MiB", "peak MiB", "seconds")
    show(console, "3. memory", columns, [row for n in (*arguments.tokens, arguments.long) for row in memory(n)])


def show(console: Console, title: str, columns: tuple[str, ...], rows: list[list[str]]) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
