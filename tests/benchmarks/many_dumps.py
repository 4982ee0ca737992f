"""Peak memory and time of analysis and eviction over 10, 100 and 1,000 dumps.

Run it by hand, on an otherwise idle machine: ``python tests/benchmarks/many_dumps.py``. A table comes out in Markdown;
the exit status is 1 if memory grows by more than the limit from the fewest dumps to the most.

What is measured
----------------
`ecokv analyze` and `ecokv evict` with three methods, as processes of their own, on a run of synthetic dumps: 4 layers,
2 KV heads, about 200 tokens of which 100 are an image. The dumps are seven of slightly different length, again and
again under other names; their layers are links to the same files, as only what ecokv makes of them matters here.

Memory is the peak of the resident set as the system counts it, and time that of the processor. Most of both at 10 dumps
is the start of Python, torch and Matplotlib, and the figures; so time per dump is taken between two counts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image

from ecokv_cli.dump.schema import SCHEMA_VERSION, Decoded, ImageGrid, ImageInfo, Manifest, ModelInfo, Tokens
from ecokv_cli.dump.writer import LayerWriter

LAYERS, KV_HEADS, QUERY_HEADS, DIM, WINDOW, STEPS, SIDE = 4, 2, 6, 16, 32, 5, 10
LENGTHS = (197, 199, 200, 203, 206, 211, 212)
LIMIT = 1.1
STUDIES = {
    "analyze": (),
    "evict": ("--budget", "48", "--method", "snapkv", "--method", "keydiff", "--method", "snapkv+ecokv"),
}


def write_dump(folder: Path, tokens: int) -> Manifest:
    """A dump of random keys and values that share a direction, a little more so in later layers."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(tokens)
    writer = LayerWriter(folder)
    for layer in range(LAYERS):
        shape = {
            "keys": (KV_HEADS, tokens), "values": (KV_HEADS, tokens), "window_queries": (QUERY_HEADS, WINDOW),
            "decode_queries": (QUERY_HEADS, STEPS), "decode_keys": (KV_HEADS, STEPS),
            "decode_values": (KV_HEADS, STEPS),
        }  # fmt: skip
        tensors = {name: torch.randn(*axes, DIM, generator=generator) + 0.1 * layer for name, axes in shape.items()}
        writer.add(layer, tensors, DIM**-0.5)
    Image.linear_gradient("L").resize((140, 140)).convert("RGB").save(folder / "image_000.png")
    roles = ("special", *("image",) * SIDE**2, *("text",) * (tokens - 1 - SIDE**2))
    cells = [divmod(i - 1, SIDE) if role == "image" else (None, None) for i, role in enumerate(roles)]
    grid = ImageGrid(0, 1, SIDE, SIDE, (0.0, 0.0, 1.0, 1.0), 0)
    return Manifest(
        schema_version=SCHEMA_VERSION, created="2026-01-01", sample="", command="ecokv dump", seed=0, device="cpu",
        model=ModelInfo("synthetic", None, "None", "none", "0" * 64, LAYERS, QUERY_HEADS, KV_HEADS, DIM, False),
        attention="sdpa", compute_dtype="float32", stored_dtype="float32", processor={},
        images=(ImageInfo("page.png", "image_000.png", "PNG", "0" * 64, (140, 140), (140, 140), ()),), grids=(grid,),
        prompt="what?", rendered_sha256="0" * 64, position_ids=(tuple(range(tokens)),), window=WINDOW,
        tokens=Tokens(
            tuple(range(tokens)), ("token",) * tokens, roles, tuple(0 if r == "image" else None for r in roles),
            tuple(row for row, _ in cells), tuple(col for _, col in cells),
        ),
        decoded=Decoded(tuple(range(STEPS)), ("a",) * STEPS, "a" * STEPS, ended=False), tensors=tuple(shape),
        layers=tuple(writer.records), seconds={"prefill": 1.0}, versions={"ecokv": "0"},
    )  # fmt: skip


def write_run(run: Path, count: int) -> None:
    """A run of `count` samples."""
    originals = [write_dump(run / "made" / str(tokens), tokens) for tokens in LENGTHS]
    for number in range(count):
        made = originals[number % len(LENGTHS)]
        folder = run / "dump" / f"sample-{number:04d}"
        folder.mkdir(parents=True)
        for file in (run / "made" / str(len(made.tokens.ids))).iterdir():
            os.link(file, folder / file.name)
        LayerWriter(folder).finish(replace(made, sample=folder.name))


@dataclass(frozen=True)
class Cost:
    """Peak resident set in bytes and processor time in seconds."""

    peak: int
    seconds: float


def measure(study: str, run: Path) -> Cost:
    """Run a study in a process of its own, on one thread."""
    command = [sys.executable, "-m", "ecokv_cli", study, str(run), *STUDIES[study], "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"ecokv {study} on {run} ended with status {process.returncode}")
    return Cost(1024 * usage.ru_maxrss, usage.ru_utime + usage.ru_stime)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="peak memory and time over many dumps")
    parser.add_argument("--dumps", default="10,100,1000", help="how many, rising, with commas")
    counts = [int(part) for part in parser.parse_args().dumps.split(",")]
    found: dict[tuple[str, int], Cost] = {}
    with tempfile.TemporaryDirectory(prefix="ecokv-many-") as scratch:
        for count in counts:
            run = Path(scratch) / str(count)
            write_run(run, count)
            found |= {(study, count): measure(study, run) for study in STUDIES}
            shutil.rmtree(run)
    grown = False
    print("| | dumps | peak MB | to fewest | CPU seconds | seconds per further dump |")
    print("|---|--:|--:|--:|--:|--:|")
    for study in STUDIES:
        least = found[study, counts[0]]
        for i, count in enumerate(counts):
            cost = found[study, count]
            before = found[study, counts[i - 1]]
            each = f"{(cost.seconds - before.seconds) / (count - counts[i - 1]):.3f}" if i else ""
            ratio = cost.peak / least.peak
            grown |= ratio > LIMIT
            print(f"| {study} | {count:,} | {cost.peak / 1e6:.0f} | {ratio:.2f} | {cost.seconds:.1f} | {each} |")
    raise SystemExit(int(grown))


if __name__ == "__main__":
    main()
